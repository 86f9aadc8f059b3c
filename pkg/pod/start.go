package pod

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// SandboxInputs is what creating a sandbox needs beside the pod itself.
type SandboxInputs struct {
	Network  string // engine network to join; "host" with hostNetwork
	Hostname string // at most 63 bytes
	DNS      DNS
	Files    []File // hosts and resolv.conf
	// CgroupParent is the pod's cgroup in the engine's words; "": the engine's own choice.
	CgroupParent string
	Runtime      string // handler of the pod's RuntimeClass; "": the engine's default
}

// DNS is a pod's resolver configuration after dnsPolicy and dnsConfig.
type DNS struct {
	Servers  []string
	Searches []string
	Options  []string
}

// Inputs is what starting one container needs beside the pod itself. Runtime looks nothing up.
type Inputs struct {
	Image      Image
	Entrypoint []string // spec.command, expanded; nil: the image's
	Args       []string // spec.args, expanded; nil: the image's, unless Entrypoint is set
	Env        []Env    // in order; a later name wins
	Mounts     []Mount
	Files      []File // single files: bind mounts on Linux, copies on Windows
	SandboxID  string // "" where there is no sandbox; then Sandbox is set
	Sandbox    *SandboxInputs
	// CgroupParent is as for SandboxInputs.
	CgroupParent string
	// TerminationLog is the host file behind terminationMessagePath; "" where it lies in the container alone (Windows).
	TerminationLog string
	// TerminationRoot is a directory that containers can write to: TerminationLog is then relative to it, and no link in it leads out
	// of it. "" where TerminationLog is a separate mount.
	TerminationRoot string
	// Runtime is the handler of the pod's RuntimeClass, as its sandbox has it; "": the engine's default.
	Runtime string
	// TargetID is the container whose processes an ephemeral container sees (targetContainerName); "": none.
	TargetID string
	Devices  []Device // volumeDevices
	// OOMScoreAdj as upstream computes it from QoS and requests; the engine clamps it to what the host allows.
	OOMScoreAdj int
}

// Env is one environment variable.
type Env struct{ Name, Value string }

// Mount is a host directory (or, for subPath and hostPath, file) or Windows named pipe in a container.
type Mount struct {
	Name          string // of the volume, for messages
	HostPath      string
	ContainerPath string
	ReadOnly      bool
	Propagation   v1.MountPropagationMode // "" is None
	// Recursive says that ReadOnly holds for what is mounted below it as well.
	Recursive bool
	// Copy says that it is a single file on Windows, which cannot be mounted: the container gets a copy before it starts.
	Copy bool
}

// Device is a block device of the host in a container.
type Device struct {
	HostPath      string
	ContainerPath string
	ReadOnly      bool
}

// File is one managed file in a container.
type File struct {
	HostPath      string // "": a directory, made where the image lacks it (only where files are copied)
	ContainerPath string
	ReadOnly      bool
}

// Image is an image that is present on this host.
type Image struct {
	ID        string // engine's id: sha256:...
	Ref       string // as for Container.ImageID
	User      string // of its config: "", "1000", "app:app"
	OS        string
	OSVersion string // Windows: 10.0.14393.x
	Size      int64  // bytes
}

// Attempt is the start for which Container is asked.
type Attempt struct {
	Kind      podspec.Kind
	Number    int          // the container's restart count
	SandboxID string       // "" where there is no sandbox
	Addresses []netip.Addr // the sandbox's; empty with hostNetwork and where there is no sandbox
	Runtime   string       // the sandbox's
	TargetID  string       // of a running container, for an ephemeral one that names it
}

// StartError says why a pod or container cannot start now. Nothing of it is final: the start is tried again.
type StartError struct {
	// Reason is upstream's: of the container's waiting state (ErrImagePull, CreateContainerConfigError, ...), or for what is wrong
	// before any container, of the event (FailedMount, NetworkNotReady, FailedCreatePodSandBox).
	Reason, Message string
	RetryAfter      time.Duration // 0: the worker's own back-off
	Err             error         // the cause; nil where the pod's own fields are
}

// Error is the reason and the message.
func (e *StartError) Error() string { return e.Reason + ": " + e.Message }

// Unwrap is the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Waiting is the container's state.waiting: before there is a sandbox and volumes, upstream shows ContainerCreating and no message.
func (e *StartError) Waiting() (reason, message string) {
	switch e.Reason {
	case ReasonMount, ReasonNetwork, ReasonSandbox:
		return "ContainerCreating", ""
	}
	return e.Reason, e.Message
}

// Reasons of a StartError before there is a container, and of a container whose own fields are wrong, as upstream has them.
const (
	ReasonMount   = "FailedMount"
	ReasonNetwork = "NetworkNotReady"
	ReasonSandbox = "FailedCreatePodSandBox"
	ReasonConfig  = "CreateContainerConfigError"
)
