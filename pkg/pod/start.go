package pod

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// SandboxInputs is what creating a sandbox needs besides the pod itself.
type SandboxInputs struct {
	Network  string // engine network to join; "host" with hostNetwork
	Hostname string // at most 63 bytes
	DNS      DNS
	Files    []File // hosts and resolv.conf
	// CgroupParent is the pod's cgroup in the form that the engine expects; "": the engine's default.
	CgroupParent string
	Runtime      string // handler of the pod's RuntimeClass; "": the engine's default
}

// DNS is a pod's resolver configuration after dnsPolicy and dnsConfig.
type DNS struct {
	Servers  []string
	Searches []string
	Options  []string
}

// Inputs is what starting one container needs besides the pod itself. Runtime looks nothing up.
type Inputs struct {
	Image      Image
	Entrypoint []string // spec.command, expanded; nil: the image's
	Args       []string // spec.args, expanded; nil: the image's, unless Entrypoint is set
	Env        []Env    // in order; a later name wins
	Mounts     []Mount
	Files      []File // single files: bind mounts on Linux, copies on Windows
	SandboxID  string // "" if there is no sandbox; Sandbox is then set
	Sandbox    *SandboxInputs
	// Searches is the DNS search list of a Windows container that shares its sandbox's network: on Windows, each container has its own
	// list.
	Searches []string
	// CgroupParent is as for SandboxInputs.
	CgroupParent string
	// TerminationLog is the host file behind terminationMessagePath; "" if the file exists only in the container (Windows).
	TerminationLog string
	// TerminationRoot is a directory that containers can write to. TerminationLog is then relative to it, and no link in it leads outside.
	// "" if TerminationLog is a separate mount.
	TerminationRoot string
	// Runtime is the handler of the pod's RuntimeClass, the same as its sandbox's; "": the engine's default.
	Runtime string
	// TargetID is the container whose processes an ephemeral container shares (targetContainerName); "": none.
	TargetID string
	Devices  []Device // volumeDevices
	// OOMScoreAdj is computed as upstream does, from QoS and requests. The engine clamps it to what the host allows.
	OOMScoreAdj int
}

// Env is one environment variable.
type Env struct{ Name, Value string }

// Mount is a host directory in a container, or a file (subPath and hostPath), or a Windows named pipe.
type Mount struct {
	Name          string // of the volume, for messages
	HostPath      string
	ContainerPath string
	ReadOnly      bool
	Propagation   v1.MountPropagationMode // "" is None
	// Recursive means that ReadOnly also applies to what is mounted below it.
	Recursive bool
	// Copy means that it is a single file on Windows, which cannot be mounted. The container gets a copy before it starts.
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
	HostPath      string // "": a directory, created if the image lacks it (only if files are copied)
	ContainerPath string
	ReadOnly      bool
}

// Image is an image on this host.
type Image struct {
	ID        string // engine's id: sha256:...
	Ref       string // as for Container.ImageID
	User      string // of its config: "", "1000", "app:app"
	OS        string
	OSVersion string // Windows: 10.0.14393.x
	Size      int64  // bytes
}

// Attempt is one attempt to start a container.
type Attempt struct {
	Kind      podspec.Kind
	Number    int          // the container's restart count
	SandboxID string       // "" if there is no sandbox
	Addresses []netip.Addr // the sandbox's; empty with hostNetwork or without a sandbox
	Runtime   string       // the sandbox's
	TargetID  string       // the running container that an ephemeral container targets
}

// StartError says why a pod or container cannot start now. It is never final: the start is tried again.
type StartError struct {
	// Reason is upstream's: of the container's waiting state (ErrImagePull, CreateContainerConfigError, ...), or of the Event if the
	// failure precedes any container (FailedMount, NetworkNotReady, FailedCreatePodSandBox).
	Reason, Message string
	RetryAfter      time.Duration // 0: the worker's own back-off
	Err             error         // the cause; nil if the pod's own fields are at fault
}

// Error returns the reason and the message.
func (e *StartError) Error() string { return e.Reason + ": " + e.Message }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Waiting returns the container's state.waiting. Before there are a sandbox and volumes, upstream shows ContainerCreating without a
// message.
func (e *StartError) Waiting() (reason, message string) {
	switch e.Reason {
	case ReasonMount, ReasonNetwork, ReasonSandbox:
		return "ContainerCreating", ""
	}
	return e.Reason, e.Message
}

// Reasons of a StartError, as upstream spells them: before there is a container, and for a container whose own fields are wrong.
const (
	ReasonMount   = "FailedMount"
	ReasonNetwork = "NetworkNotReady"
	ReasonSandbox = "FailedCreatePodSandBox"
	ReasonConfig  = "CreateContainerConfigError"
)
