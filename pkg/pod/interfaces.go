package pod

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/podspec"
)

// Runtime is the engine as workers see it. All methods may be called concurrently; each ends by itself when ctx ends or the
// engine hangs (per-call deadlines are the implementation's).
type Runtime interface {
	// ObserveAll returns every pod of which the engine has anything. An error means "unknown", never "nothing". A container that the
	// engine cannot describe makes its pod Unclear and holds up no other.
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
	// Attachments is what only the network knows of what the engine has of pod. It does not block, and changes nothing of engine.
	Attachments(pod *v1.Pod, engine Observed) Attachments
	// Attach gives to, which runs, its network. Idempotent; it blocks as long as the network's plugins may take. What fails is undone.
	Attach(ctx context.Context, pod *v1.Pod, to Member) error
	// Detach takes back what Attach gave, or a part of it. It is called before from is stopped and again when it is removed.
	Detach(ctx context.Context, from Member) error
}

// HostPorts serves the hostPorts that neither the engine nor the network serves.
type HostPorts interface {
	// Serve has the HostPorts of observed, and no others, lead to the pod from now on; nothing observed ends it all. It does not block.
	Serve(uid types.UID, observed Observed)
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
	// Services lists the services of a namespace; the error says that the list is not yet complete.
	Services(namespace string) ([]*v1.Service, error)
	// Node returns this node's own object, nil before it is known.
	Node() *v1.Node
	// Changed delivers the UID of a registered pod one of whose Secrets or ConfigMaps changed.
	Changed() <-chan types.UID
}

// Admitter decides what may start here. It is called by the Manager's goroutine only, in order of arrival.
type Admitter interface {
	// Admit takes pod in, given all that was admitted before and not released. Nil: admitted. Admitting a pod again replaces it. One that
	// waits for others to end holds its place until it is released.
	Admit(pod *v1.Pod) *Rejection
	// Adopt counts a pod in that already ran when this agent started; never refused.
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
