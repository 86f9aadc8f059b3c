// Package pod has the nouns of the kubelet's flow and the interfaces between its parts. It does nothing by itself: no goroutine starts
// here, and nothing is read or written.
//
//	source.Source -> worker.Manager -> one worker per UID: plan.Plan(pod, seen, now) -> steps -> Runtime, Volumes, Network
//	                                                       plan.Status(pod, seen, now) -> StatusWriter
//	                                   start.Resolver: what one container needs before its start
//
// Each of these rooms is a package below this one; packages docker, volume, network and kubeclient implement the interfaces. The worker
// has a room too, although the flow is told here: it calls plan, which needs these nouns, and Go's imports cannot go round.
package pod

import (
	"context"
	"errors"
	"net/netip"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/podspec"
)

// Platform is what Plan and the engine's Convert must know of the host. It is a value so that every platform is tested everywhere.
type Platform struct {
	OS   string // "linux" or "windows", as in runtime.GOOS and the label kubernetes.io/os
	Arch string // as in runtime.GOARCH
	// Build is the Windows build number (14393 is Server 2016, 17763 is 2019, 20348 is 2022, 26100 is 2025); 0 on Linux.
	Build int
	// SharedNetwork says that a container can join the network of another. False on Windows before 1709 (build 16299): a pod there
	// has one container, no sandbox, and that container's address.
	SharedNetwork bool
}

// Phase is a worker's whole life. It only ever moves forward.
type Phase int

const (
	Syncing     Phase = iota // make the pod run
	Terminating              // stop what runs; the pod still has an API object that waits for us, or none at all
	Terminated               // nothing runs; status is final, volumes and engine leftovers are being removed
)

// State is what the engine says of a container.
type State string

const (
	Created State = "created" // exists, was never started: a leftover of a start that was cut short
	Running State = "running"
	Exited  State = "exited" // also: dead, or being removed
)

// Observed is everything that the engine has of one pod. The zero value is "nothing".
type Observed struct {
	UID             types.UID
	Namespace, Name string      // from the engine's labels: all that is known of a pod whose API object is gone
	Grace           int64       // seconds, spec.terminationGracePeriodSeconds at creation, from the labels
	Sandboxes       []Sandbox   // newest first
	Containers      []Container // newest first
	// Cgroup is what the pod as a whole is held to; nil where it has no cgroup of its own. It is read beside the engine, from Cgroups.
	Cgroup *podspec.Resources
	// Unclear says that the engine did not tell all of it: it shows who is there, and is nothing to act upon. From ObserveAll alone.
	Unclear bool
}

// Sandbox is an infra container, the owner of the pod's network.
type Sandbox struct {
	ID        string
	Attempt   int
	Running   bool
	Unstarted bool // made and never started, or just being started
	CreatedAt time.Time
	PID       int          // of its process on the host while Running, 0 where unknown
	Network   string       // of the engine; "host" with hostNetwork
	Addresses []netip.Addr // empty with hostNetwork
	// Unattached says that it has no network yet: it waits for AttachNetwork. From Attacher alone.
	Unattached bool
	Runtime    string // handler of the pod's RuntimeClass; "": none
	// HostPorts are those of the pod that nobody serves yet while Running: the engine publishes none of them.
	HostPorts []HostPort
}

// HostPort is a port of the host that leads to one of a pod.
type HostPort struct {
	IP            netip.Addr // hostIP; invalid: all addresses, unspecified: all of that family
	Port          uint16
	Protocol      v1.Protocol
	ContainerPort uint16
}

// Container is one attempt to run a container of the spec.
type Container struct {
	ID        string
	Name      string // as in the spec
	Kind      podspec.Kind
	Attempt   int    // 0, 1, ...: the restart count
	SandboxID string // "" where there is no sandbox
	Hash      string // Hash of the spec it was made from
	State     State

	CreatedAt, StartedAt, FinishedAt time.Time
	ExitCode                         int
	OOMKilled                        bool
	Error                            string // why the engine could not start it

	Image       string       // as in the spec at creation
	ImageID     string       // as shown in containerStatuses.imageID, e.g. docker-pullable://repo@sha256:... or docker://sha256:...
	Message     string       // termination message, at most 4096 bytes; only when Exited
	Network     string       // of the engine, as for Sandbox; "container:<id>" where it is another's
	Addresses   []netip.Addr // only where the container has a network of its own
	EarlierBoot bool         // it was made before the host's last boot
	// Unattached is as for Sandbox, where the network has to be given to each container.
	Unattached bool
	HostPorts  []HostPort // as for Sandbox, likewise
	HostPID    int        // pid on the host while Running, 0 where unknown
	// Resources are what the engine holds it to; nil where it cannot be changed while it runs.
	Resources *podspec.Resources
	// User is as whom its first process began (containerStatuses.user); nil where that is not known, and on Windows.
	User       *v1.LinuxContainerUser
	StopSignal string // SIGTERM, ...; "" where the engine has none
	// RecursiveReadOnly says that its mounts that were to be recursively read-only if possible are.
	RecursiveReadOnly bool
}

// Action is the verb of a Step.
type Action string

const (
	CreateSandbox   Action = "create-sandbox"
	StopSandbox     Action = "stop-sandbox" // at once: it has nothing to lose
	RemoveSandbox   Action = "remove-sandbox"
	StartContainer  Action = "start-container" // create and start
	StopContainer   Action = "stop-container"  // stop signal, Grace, kill
	RemoveContainer Action = "remove-container"
	AttachNetwork   Action = "attach-network"   // give a sandbox or container its network; the worker does it by Attacher
	UpdateContainer Action = "update-container" // hold it to other Resources while it runs
	UpdatePod       Action = "update-pod"       // likewise the pod as a whole; the worker does it, the Runtime never sees it
)

// Step is one thing for the Runtime to do. Steps of one Plan stand in the order in which they may begin.
type Step struct {
	Action    Action
	Container string        // name in the spec; "" for a sandbox
	Kind      podspec.Kind  // of Container
	ID        string        // engine's id, for stop and remove
	Attempt   int           // for create and start
	Grace     time.Duration // for stop-container; 0: kill at once
	Reason    string        // why, in words for logs, events and `kubelet plan`

	Sandbox *SandboxInputs `json:",omitempty"` // create-sandbox: filled by Resolve just before the step runs
	Inputs  *Inputs        `json:",omitempty"` // start-container: likewise

	Resources *podspec.Resources `json:",omitempty"` // update-container, update-pod
}

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
	// of it. "" where TerminationLog is a mount of its own.
	TerminationRoot string
	// Runtime is the handler of the pod's RuntimeClass, as its sandbox has it; "": the engine's default.
	Runtime string
	// TargetID is the container whose processes an ephemeral container sees (targetContainerName); "": none.
	TargetID string
	Devices  []Device // volumeDevices
	// OOMScoreAdj as upstream reckons it from QoS and requests; the engine clamps it to what the host allows.
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

// Credential is one registry login that may be tried for a pull.
type Credential struct {
	Username, Password, Auth, Email, ServerAddress, IdentityToken, RegistryToken string
	// Source says whose it is. Logins that differ in nothing else are the same for a registry.
	Source CredentialSource `json:"-"`
}

// CredentialSource is where a Credential came from. The zero value is the node itself, so that every pod here may use it.
type CredentialSource struct {
	Kind            SourceKind
	Namespace, Name string
	UID             types.UID
}

// SourceKind is the kind of object that a Credential belongs to; "" is the node.
type SourceKind string

const (
	FromSecret         SourceKind = "secret"          // an imagePullSecret
	FromServiceAccount SourceKind = "service account" // a plugin gave it for the account's token
)

// Login is a Credential and the images that it is for, as a key of a Docker config's auths names them: a registry, or also the
// beginning of a path in it. The registry may hold wildcards.
type Login struct {
	Server string
	Credential
}

// Runtime is the engine as workers see it. All methods may be called concurrently; each ends by itself when ctx ends or the
// engine hangs (per-call deadlines are the implementation's).
type Runtime interface {
	// ObserveAll returns every pod of which the engine has anything. An error means "unknown", never "nothing". A container of which the
	// engine does not tell makes its pod Unclear and holds up no other.
	ObserveAll(ctx context.Context) (map[types.UID]Observed, error)
	// Observe returns one pod, at a cost that does not grow with the number of other pods. Nothing there is no error.
	Observe(ctx context.Context, uid types.UID) (Observed, error)
	// Apply does one step. Repeating a done step is no error: an existing sandbox or container of the same attempt is adopted or, when
	// it was left half-made, replaced; stopping or removing what is gone succeeds.
	Apply(ctx context.Context, pod *v1.Pod, step Step) error
	// Changes delivers the UID of a pod whose containers changed: a hint only, Observe is the truth. After a gap in the engine's
	// event stream it delivers "" which means "anything". Closed when ctx ends.
	Changes(ctx context.Context) <-chan types.UID
}

// Images is the engine's image store.
type Images interface {
	// Lookup finds a present image by the name of a spec. found false with err nil: not present.
	Lookup(ctx context.Context, name string) (img Image, found bool, err error)
	// Pull fetches name, trying creds in order (none: anonymous), and returns what Lookup would and which of creds it was, -1: none.
	Pull(ctx context.Context, name string, creds []Credential) (img Image, used int, err error)
}

// CredentialPlugins are the node's credential provider plugins (KEP-2133).
type CredentialPlugins interface {
	// Logins asks the plugins that are for image, a name with registry and without tag. A plugin that fails gives nothing; why is for
	// the log. Blocks for a minute per plugin at most, and ends with ctx.
	Logins(ctx context.Context, pod *v1.Pod, image string) []Login
}

// PullRecords remember with whose credentials images were pulled (KEP-2535), so that no pod uses the private image of another only
// because it is here already. name is an image's as the engine was asked for it, with tag or digest.
type PullRecords interface {
	// Intend says that name will be pulled; Pulled or Failed follows, unless the agent dies. After an error it may not be pulled.
	Intend(name string) error
	// Pulled says that img came under name, with cred (zero: without any).
	Pulled(name string, img Image, cred Credential)
	// Failed says that nothing came; with given up that something may have come all the same.
	Failed(name string, givenUp bool)
	// Usable says whether a pod with creds may use img, which is present under name, without asking the registry. creds is called only
	// when the answer depends on it.
	Usable(name string, img Image, creds func() []Credential) bool
}

// Executor runs commands in running containers for probes and hooks.
type Executor interface {
	// ExecSync runs argv and returns its exit code and its output (both streams, at most limit bytes kept). When ctx ends the command is
	// ended as well where the engine allows it and err is ctx's, or another when the engine does not answer and so nothing is known. A
	// command that could not be started is an error, not an exit code.
	ExecSync(ctx context.Context, containerID string, argv []string, limit int) (exitCode int, output []byte, err error)
}

// Volumes owns the pod's directory on this host and everything in it.
type Volumes interface {
	// Prepare makes every volume of pod and returns the host path by volume name. Idempotent: called before each container start and
	// again when a Secret or ConfigMap changed, it brings contents up to date. An error names the volume (upstream's FailedMount).
	Prepare(ctx context.Context, pod *v1.Pod) (map[string]string, error)
	// Mounts resolves the volumeMounts of one container, one Mount each, in order; env expands subPathExpr. Host paths are safe to hand to the engine: a subPath never leads out of its volume.
	Mounts(ctx context.Context, pod *v1.Pod, container *v1.Container, env []Env) ([]Mount, error)
	// Devices resolves the volumeDevices of one container to block devices of the host.
	Devices(pod *v1.Pod, container *v1.Container) ([]Device, error)
	// WriteFile keeps a managed file (hosts, resolv.conf, a termination log) in the pod's directory and returns its path. The file is
	// rewritten in place when data differs, so that a running container's bind mount sees it. nil data: create empty, keep what is there.
	WriteFile(uid types.UID, name string, data []byte, mode uint32) (path string, err error)
	// MakeDir makes a directory in the pod's directory that its containers may write to, and returns its path.
	MakeDir(uid types.UID, name string) (path string, err error)
	// KeepFiles removes all that WriteFile and MakeDir have made in a directory of the pod's but what is called keep, with what containers
	// put there. No such directory is no error.
	KeepFiles(uid types.UID, dir string, keep ...string) error
	// Clean removes the pod's directory with all that is in it: unmounts, deletes. Idempotent; an error means "try again later".
	Clean(ctx context.Context, uid types.UID) error
	// Leftovers lists the pods that have a directory here.
	Leftovers() ([]types.UID, error)
}

// Cgroups keeps a cgroup for each pod, in which all its containers are. Methods may be called concurrently for different pods; none
// takes longer than the kernel does, but with systemd, which is asked for each change.
type Cgroups interface {
	// Parent is the name of the pod's cgroup for the engine.
	Parent(pod *v1.Pod) string
	// Limit makes the pod's cgroup and holds it to r. Idempotent. A memory limit that is not above what is in use is an error.
	Limit(ctx context.Context, pod *v1.Pod, r podspec.Resources) error
	// Limits is what the pod's cgroup is held to; nil where there is none.
	Limits(pod *v1.Pod) (*podspec.Resources, error)
	// Remove takes the cgroup of a pod away that has ended. None there is no error; one in which something runs is.
	Remove(ctx context.Context, uid types.UID) error
	// Leftovers lists the pods that have a cgroup.
	Leftovers() ([]types.UID, error)
}

// Network is this node's pod network.
type Network interface {
	// Join names the engine network for pods that do not use the host's; the error says why pods cannot start yet (upstream's NetworkNotReady).
	Join(pod *v1.Pod) (engineNetwork string, err error)
}

// Attacher gives running sandboxes and containers a network where the engine does not: by CNI plugins.
type Attacher interface {
	// Complete adds to what the engine has of pod what only the network knows: addresses, and who is Unattached. It does not block.
	Complete(pod *v1.Pod, observed *Observed)
	// Attach gives to, which runs, its network. Idempotent; it blocks as long as the network's plugins may take. What fails is undone.
	Attach(ctx context.Context, pod *v1.Pod, to Member) error
	// Detach takes back what Attach gave, or a part of it. It is called before from is stopped and again when it is removed.
	Detach(ctx context.Context, from Member) error
}

// HostPorts serves the hostPorts that nobody else does.
type HostPorts interface {
	// Serve has the HostPorts of observed, and no others, lead to the pod from now on; nothing observed ends it all. It does not block.
	Serve(uid types.UID, observed Observed)
}

// Member is a sandbox or container as Attacher knows it.
type Member struct {
	ID        string
	SandboxID string // whose network it shares; its own ID for a sandbox; "": it has one of its own
	PID       int    // on the host; 0: it does not run, or that is not known
}

// StatusWriter brings statuses to the API server. Calls block until done or ctx ends; retries are the caller's.
type StatusWriter interface {
	// Write patches the status of the pod with pod's UID. NotFound (also: another UID has the name) is returned as the API's error.
	Write(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error
	// Delete removes the API object of a pod that has terminated: grace period 0, UID as precondition. Gone already is no error.
	Delete(ctx context.Context, pod *v1.Pod) error
	// CreateMirror makes the mirror pod of a static pod; existing with the same hash is no error.
	CreateMirror(ctx context.Context, mirror *v1.Pod) error
}

// Objects reads the API objects that pods refer to. NotFound and Forbidden come back as the API's errors.
type Objects interface {
	// Register says that pod runs here: its Secrets and ConfigMaps are watched from now on (immutable ones are not). Idempotent; a new
	// version of the pod replaces the former references.
	Register(pod *v1.Pod)
	// Unregister ends the watches that no other pod needs.
	Unregister(uid types.UID)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	// Token requests a bound service account token.
	Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	// RuntimeHandler is the handler of the RuntimeClass of that name. While the API server is away it is the one last seen.
	RuntimeHandler(ctx context.Context, name string) (string, error)
	// Services lists the services of a namespace; the error tells that the list is not yet complete.
	Services(namespace string) ([]*v1.Service, error)
	// Node returns this node's own object, nil before it is known.
	Node() *v1.Node
	// Changed delivers the UID of a registered pod one of whose Secrets or ConfigMaps changed.
	Changed() <-chan types.UID
}

// Rejection says why a pod may not start here, or not go on. It ends on the pod: phase Failed, Reason and Message as upstream has them.
type Rejection struct {
	Reason, Message string
	// Disruption is the message of the condition DisruptionTarget where a pod ends for the sake of others; "": Message.
	Disruption string
	// Preemption says that the pod is not refused: others end to make room for it. It is to be admitted again when one was released.
	Preemption *Preemption
	// Ask says that the pod is not refused yet: it is to be admitted again when that has returned.
	Ask *Question
}

// Question finds out what an Admitter has to know. It may block, and is called by another goroutine than the Admitter's.
type Question func(ctx context.Context)

// Preemption is who has to end from now on. Nobody: others are ending already.
type Preemption struct{ Victims []types.UID }

// Eviction ends a pod that was let in, for the sake of the node or of other pods. It ends on the pod as a Rejection does, with condition
// DisruptionTarget.
type Eviction struct {
	Rejection
	Grace time.Duration // so long its containers get to stop, or less where the pod says less; at least a second
	// Annotations go on the Event.
	Annotations map[string]string
}

// Admitter decides what may start here. It is called by the Manager's goroutine only, in order of arrival.
type Admitter interface {
	// Admit takes pod in, given all that was admitted before and not released. Nil: admitted. Admitting a pod again replaces it. One that
	// waits for others to end holds its place until it is released.
	Admit(pod *v1.Pod) *Rejection
	// Adopt takes in a pod that already ran when this agent started; never refused.
	Adopt(pod *v1.Pod)
	// Resize weighs the new requests of a pod that is in. Nil: it holds them from now on. Else Reason is v1.PodReasonDeferred, it may be
	// tried again when something was given back, or v1.PodReasonInfeasible; it goes on holding what it held.
	Resize(pod *v1.Pod) *Rejection
	// Release gives back what pod held.
	Release(uid types.UID)
}

// Prober runs one probe or hook once. It keeps no state.
type Prober interface {
	// Probe runs handler against target. An error means that it could not run at all.
	Probe(ctx context.Context, handler v1.ProbeHandler, target ProbeTarget) (ProbeResult, error)
	// Hook sends the request of an httpGet hook; any answer will do. fellBack: it was to be sent over TLS, and the server, which does not
	// speak that, had it without.
	Hook(ctx context.Context, action *v1.HTTPGetAction, target ProbeTarget) (fellBack bool, err error)
}

// ProbeResult is how a probe ended.
type ProbeResult struct {
	OK      bool
	Warning bool   // with OK: it passed, and Detail says what is odd
	Detail  string // what Events show
}

// ProbeTarget is where a probe goes.
type ProbeTarget struct {
	ContainerID string
	PodIP       netip.Addr
	Ports       []v1.ContainerPort // to resolve named ports
	Env         []Env
	// Who is probed, and why: Startup, Liveness or Readiness.
	Pod             *v1.Pod
	Container, Kind string
}

// EngineNetwork is a network of the engine on which sandboxes are made. Package network decides it, package docker keeps it.
type EngineNetwork struct {
	Name     string
	ID       string // set by the engine
	Driver   string // bridge; transparent, l2bridge, nat, overlay on Windows
	Subnets  []netip.Prefix
	Gateways []netip.Addr // one per subnet, same order
	Options  map[string]string
	Labels   map[string]string
}

// ErrRegistryUnavailable may be wrapped by an Images whose registry does not answer: the reason that users see is then
// RegistryUnavailable in place of ErrImagePull.
var ErrRegistryUnavailable = errors.New("RegistryUnavailable")
