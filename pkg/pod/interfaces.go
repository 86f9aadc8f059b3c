package pod

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/podspec"
)

// Runtime is the engine as workers see it. All methods are safe for concurrent use. Each returns when ctx ends, and also when the engine
// hangs: the implementation sets a deadline for each call.
type Runtime interface {
	// ObserveAll returns every pod that the engine knows. An error means "unknown", never "nothing". A container that the engine cannot
	// describe makes its pod Unclear and does not delay other pods.
	ObserveAll(ctx context.Context) (map[types.UID]Observed, error)
	// Observe returns one pod. Its cost does not grow with the number of other pods. An unknown pod is not an error.
	Observe(ctx context.Context, uid types.UID) (Observed, error)
	// Apply carries out one step. Repeating a finished step is not an error: Apply adopts an existing sandbox or container of the same
	// attempt, or replaces it if it is incomplete. Stopping or removing a missing one succeeds.
	Apply(ctx context.Context, pod *v1.Pod, step Step) error
	// Changes delivers the UID of a pod whose containers changed. This is only a hint; Observe has the truth. After a gap in the engine's
	// event stream it delivers "", which means "any pod". Closed when ctx ends.
	Changes(ctx context.Context) <-chan types.UID
}

// Images is the engine's image store.
type Images interface {
	// Lookup finds a local image by its name in a spec. If there is none, found is false and err is nil.
	Lookup(ctx context.Context, name string) (img Image, found bool, err error)
	// Pull pulls name. It tries creds in order; with none it pulls anonymously. It returns the image as Lookup would, and the index in
	// creds that worked, or -1.
	Pull(ctx context.Context, name string, creds []Credential) (img Image, used int, err error)
}

// CredentialPlugins are the node's credential provider plugins (KEP-2133).
type CredentialPlugins interface {
	// Logins asks the plugins that match image, a name with registry and without tag. A failed plugin yields no logins; its error is
	// logged. Blocks for at most a minute per plugin, and returns when ctx ends.
	Logins(ctx context.Context, pod *v1.Pod, image string) []Login
}

// PullRecords record which credentials images were pulled with (KEP-2535), so that a pod cannot use another pod's private image merely
// because it is on the node. name is the image's name in the pull request, with tag or digest.
type PullRecords interface {
	// Intend records that name is about to be pulled. Pulled or Failed follows unless the agent dies. After an error, do not pull.
	Intend(name string) error
	// Pulled records that name was pulled as img, with cred (zero: anonymously).
	Pulled(name string, img Image, cred Credential)
	// Failed records a failed pull. givenUp means that the image may have arrived all the same.
	Failed(name string, givenUp bool)
	// Usable reports whether a pod with creds may use img, which is on the node as name, without asking the registry. It calls creds only
	// if the answer depends on them.
	Usable(name string, img Image, creds func() []Credential) bool
}

// Executor runs commands in running containers for probes and hooks.
type Executor interface {
	// ExecSync runs argv and returns its exit code and up to limit bytes of its combined output. When ctx ends, the command is also ended
	// if the engine allows it. err is then ctx's, or another error if the engine does not answer and the outcome is unknown. A command that
	// cannot start is an error, not an exit code.
	ExecSync(ctx context.Context, containerID string, argv []string, limit int) (exitCode int, output []byte, err error)
}

// Volumes owns the pod's directory on this host and everything in it.
type Volumes interface {
	// Prepare sets up every volume of pod and returns host paths by volume name. Idempotent: it is called before each container start and
	// after a Secret or ConfigMap changes, and updates the contents. An error names the volume (upstream's FailedMount).
	Prepare(ctx context.Context, pod *v1.Pod) (map[string]string, error)
	// Mounts resolves the volumeMounts of one container: one Mount each, in the same order. env expands subPathExpr. The host paths are
	// safe to pass to the engine: a subPath never leads out of its volume.
	Mounts(ctx context.Context, pod *v1.Pod, container *v1.Container, env []Env) ([]Mount, error)
	// Devices resolves the volumeDevices of one container to block devices of the host.
	Devices(pod *v1.Pod, container *v1.Container) ([]Device, error)
	// WriteFile writes a managed file (hosts, resolv.conf, a termination log) in the pod's directory and returns its path. If data differs,
	// it rewrites the file in place, so that a running container's bind mount shows the change. nil data: create an empty file, or keep the
	// existing one.
	WriteFile(uid types.UID, name string, data []byte, mode uint32) (path string, err error)
	// MakeDir makes a directory in the pod's directory that its containers may write to, and returns its path.
	MakeDir(uid types.UID, name string) (path string, err error)
	// KeepFiles removes everything from a directory below the pod's that WriteFile and MakeDir created, except the names in keep. This
	// includes what containers wrote there. A missing directory is not an error.
	KeepFiles(uid types.UID, dir string, keep ...string) error
	// Clean unmounts and deletes everything in the pod's directory, then the directory. Idempotent; on an error, try again later.
	Clean(ctx context.Context, uid types.UID) error
	// Leftovers lists the pods that have a directory here.
	Leftovers() ([]types.UID, error)
}

// Cgroups keeps one cgroup per pod, the parent of all its containers' cgroups. Methods may be called concurrently for different pods. They
// take only as long as the kernel, but with systemd each change is a request to systemd.
type Cgroups interface {
	// Parent is the name of the pod's cgroup for the engine.
	Parent(pod *v1.Pod) string
	// Limit creates the pod's cgroup and applies r to it. Idempotent. A memory limit at or below current use is an error.
	Limit(ctx context.Context, pod *v1.Pod, r podspec.Resources) error
	// Limits returns the limits of the pod's cgroup; nil if there is no cgroup.
	Limits(pod *v1.Pod) (*podspec.Resources, error)
	// MemoryKills returns how many processes of the pod the kernel has killed for lack of memory since its cgroup was created. known is false if the
	// kernel does not count them for the pod (cgroup v1), or there is no cgroup. It does not block.
	MemoryKills(pod *v1.Pod) (kills uint64, known bool)
	// End kills the processes of one of the pod's containers that the engine reports as not running: an engine that was stopped while it
	// started a container may have lost track of it. No processes is not an error.
	End(ctx context.Context, pod *v1.Pod, id string) error
	// Remove removes the cgroup of a pod that has ended. A missing cgroup is not an error; one with running processes is.
	Remove(ctx context.Context, uid types.UID) error
	// Leftovers lists the pods that have a cgroup.
	Leftovers() ([]types.UID, error)
}

// Network is this node's pod network.
type Network interface {
	// Join returns the engine network for pods without hostNetwork. The error says why pods cannot start yet (upstream's NetworkNotReady).
	Join(pod *v1.Pod) (engineNetwork string, err error)
}

// Attacher connects running sandboxes and containers to a network if the engine does not: through CNI plugins.
type Attacher interface {
	// Attachments returns what the network knows about pod and the engine does not. It does not block and does not change engine.
	Attachments(pod *v1.Pod, engine Observed) Attachments
	// Attach connects to, which must be running, to its network. Idempotent. It blocks as long as the network's plugins may take, and
	// undoes a partial failure.
	Attach(ctx context.Context, pod *v1.Pod, to Member) error
	// Detach undoes Attach, even a partial one. It is called before from is stopped, and again when it is removed.
	Detach(ctx context.Context, from Member) error
}

// HostPorts serves the hostPorts that neither the engine nor the network serves.
type HostPorts interface {
	// Serve makes exactly the HostPorts of observed lead to the pod from now on. A zero observed removes them all. It does not block.
	Serve(uid types.UID, observed Observed)
	// FoundAll says that Serve was called for every pod that a former agent left on this node. It does not block.
	FoundAll()
}

// StatusWriter writes statuses to the API server. Calls block until done or until ctx ends. The caller retries.
type StatusWriter interface {
	// Write patches the status of the pod with pod's UID. NotFound is returned as the API's error, also if the name has another UID.
	Write(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error
	// Delete removes the API object of a terminated pod, with grace period 0 and its UID as a precondition. A missing object is not an
	// error.
	Delete(ctx context.Context, pod *v1.Pod) error
	// CreateMirror creates a static pod's mirror pod. An existing one with the same hash is not an error.
	CreateMirror(ctx context.Context, mirror *v1.Pod) error
}

// Objects reads the API objects that pods refer to. It returns NotFound and Forbidden as the API's errors.
type Objects interface {
	// Register marks pod as running here and starts watching its Secrets and ConfigMaps (except immutable ones). Idempotent; a new version
	// of the pod replaces its former references.
	Register(pod *v1.Pod)
	// Unregister stops the watches that no other pod needs.
	Unregister(uid types.UID)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	// Token requests a bound service account token.
	Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	// RuntimeHandler returns the handler of a RuntimeClass; while the API server is unavailable, the one last seen.
	RuntimeHandler(ctx context.Context, name string) (string, error)
	// Services lists the services of a namespace. An error means that the list is not complete yet.
	Services(namespace string) ([]*v1.Service, error)
	// Node returns this node's own object, nil before it is known.
	Node() *v1.Node
	// Changed delivers the UID of a registered pod after one of its Secrets or ConfigMaps changes.
	Changed() <-chan types.UID
}

// Admitter decides which pods may start here. Only the Manager's goroutine calls it, in order of arrival.
type Admitter interface {
	// Admit decides on pod, given all pods that were admitted and not released. Nil: admitted. Admitting a pod again replaces it. A pod
	// that waits for others to end keeps its place until it is released.
	Admit(pod *v1.Pod) *Rejection
	// Adopt accounts for a pod that already ran when this agent started. It never refuses.
	Adopt(pod *v1.Pod)
	// Resize admits or refuses the new requests of an admitted pod. Nil: they are accounted from now on. Otherwise the old requests stay
	// accounted. Reason v1.PodReasonDeferred means that a retry may succeed after a release; v1.PodReasonInfeasible means that it never
	// will.
	Resize(pod *v1.Pod) *Rejection
	// Release frees what the pod holds.
	Release(uid types.UID)
}

// Prober runs one probe or hook once. It is stateless.
type Prober interface {
	// Probe runs handler against target. An error means that the probe could not run.
	Probe(ctx context.Context, handler v1.ProbeHandler, target ProbeTarget) (ProbeResult, error)
	// Hook sends the request of an httpGet hook; any response counts as success. fellBack means that the request should have used TLS, but
	// the server does not speak it and got plain HTTP.
	Hook(ctx context.Context, action *v1.HTTPGetAction, target ProbeTarget) (fellBack bool, err error)
}
