package network

import (
	"context"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/network/endpoints"
	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// Parts are the dependencies of a Manager. Windows, Plugins, PodLinks and Cluster are optional.
type Parts struct {
	Engine   Engine
	Host     Host
	Windows  Windows // nil on Linux
	Clock    clock.Clock
	Node     Node
	Pods     Pods
	Prober   Prober
	Reports  Reports
	Plugins  Plugins        // mode CNI; nil in all others
	PodLinks podlink.Kernel // Linux, for Config.Interfaces ByKubelet; nil on Windows
	Cluster  Cluster        // nil: nothing is learned
}

// Cluster returns facts learned from the cluster: *learn.Cluster. Call Kick when they change.
type Cluster interface {
	// Ranges are the ranges of Services and of pods; read says whether the cluster's Services have been read.
	Ranges() (services, pods []netip.Prefix, read bool)
}

// Engine is the part of the container engine that the pod network needs. The Manager calls it from one goroutine, except Existing and Stop. Errors
// are the engine's; the next comparison retries.
type Engine interface {
	// Version is the engine's version, such as 28.1.0.
	Version(ctx context.Context) (string, error)
	// Existing returns which of ids are pods' containers of the engine, including exited ones. The result may have others too.
	Existing(ctx context.Context, ids []string) (map[string]bool, error)
	EngineNetworks
}

// EngineNetworks gives access to the engine's networks and the containers on them.
type EngineNetworks interface {
	Networks(ctx context.Context) ([]pod.EngineNetwork, error)
	// EnsureNetwork creates want. An existing network that differs is an error.
	EnsureNetwork(ctx context.Context, want pod.EngineNetwork) error
	// RemoveNetwork fails while containers use the network. A missing network is not an error.
	RemoveNetwork(ctx context.Context, name string) error
	// Members returns the running containers that have their own addresses in the network, by ID.
	Members(ctx context.Context, network string) (map[string][]netip.Addr, error)
	// Connect connects a running container to the network, with these addresses.
	Connect(ctx context.Context, network, container string, addrs []netip.Addr) error
	// Stop stops a container gracefully, which takes up to its grace period. Stopping an exited container is not an error.
	Stop(ctx context.Context, container string) error
}

// Host is the part of the system, besides the engine, that the pod network needs on every system. Only one goroutine calls it.
type Host interface {
	// Apply sets Rules, Gateways, Devices and Forward as in s, and connects the host to s.Bridge. Applying the same State again changes nothing; an
	// empty State removes everything of ours.
	Apply(ctx context.Context, s State) error
	// Watch subscribes and returns; until ctx ends it sends hints that others may have changed something. wait, which is never nil, returns when all
	// goroutines have ended after that. With an error, some or all changes are not reported.
	Watch(ctx context.Context, hints wake.Signal) (wait func(), err error)
	// Look reads the host's interfaces and routes.
	Look() (Surroundings, error)
}

// Windows is the part of Windows that the pod network needs: HNS, and the adapters that virtual switches use. Only one goroutine calls it, except the
// methods of endpoints.HNS.
type Windows interface {
	// MakeBridge creates the network in HNS, or adopts one with the same name, kind, range and gateway, and returns its ID; hns.ErrDiffers: the
	// existing one differs. Idempotent.
	MakeBridge(b hns.Bridge) (hns.ID, error)
	// RemoveBridge removes the network with its endpoints. A missing network is not an error.
	RemoveBridge(name string) error
	// Addresses returns the addresses of this host's endpoints in the HNS network with that ID.
	Addresses(network hns.ID) ([]netip.Addr, error)
	// MakeOverlay creates or adopts the network, and returns the hardware address at which other hosts reach its pods. With an error that wraps
	// hns.ErrNoHostRoute the result is valid: all else succeeded. Idempotent.
	MakeOverlay(o hns.Overlay) (vxlan.MAC, error)
	// CompleteEndpoints adds missing policies to the pods' endpoints on o's network: ranges may have been learned since. Idempotent.
	CompleteEndpoints(o hns.Overlay) error
	// RemoveOverlay removes the network with its endpoints. A missing network is not an error.
	RemoveOverlay(name string) error
	// Uplink reads the static settings of the interface with address a; nil: no interface has it as a static address.
	Uplink(a netip.Addr) (*Uplink, error)
	// Restore restores the settings of the interface. Settings that it already has are not an error.
	Restore(ctx context.Context, u Uplink) error
	endpoints.HNS
}

// Node gives access to this node's Node object.
type Node interface {
	// Annotate writes annotations; nil values are removed. Errors are the API server's.
	Annotate(ctx context.Context, changes map[string]*string) error
	// Event records an Event on the Node. The result of Unavailable may have changed with it. It must not block.
	Event(kind, reason, message string)
	// NetworkChanged is called after each attempt to implement a State, with the new result of Ready. It must not block.
	NetworkChanged(ready error)
}

// Pods answers questions about pods and records Events on them.
type Pods interface {
	// DNS is a pod's resolver configuration, which Windows containers get together with their network.
	DNS(p *v1.Pod) (pod.DNS, error)
	// Event records an Event on a pod. It must not block.
	Event(namespace, name, uid, kind, reason, message string)
}

// Prober sends packets to test whether pods' packets would arrive. An invalid from means any address. Calls block for seconds at most.
type Prober interface {
	// ToServer connects from the address from to the API server.
	ToServer(ctx context.Context, from netip.Addr) error
	// ToPods connects to another node by an address of its pods' range to. A refused connection also proves arrival.
	ToPods(ctx context.Context, from netip.Addr, to netip.Prefix) error
}

// Reports are the faults of routes to other nodes that this host's proxy reports.
type Reports interface {
	// Read returns the current faults; none: all is well, or no proxy runs.
	Read() ([]report.Trouble, error)
	// Watch calls changed after each change until ctx ends, and returns nil then. changed does not block.
	Watch(ctx context.Context, changed func()) error
}

// Attachments connect containers to a network that the engine does not manage. *cni.Plugins, *endpoints.Endpoints and *podlink.Links implement it.
// Calls for different containers may be concurrent, but not those for one container.
type Attachments interface {
	// Add connects a running container and returns its addresses. Idempotent: a connected container keeps its connection. A failed attempt is undone
	// immediately or by Collect. It blocks as long as plugins or HNS need.
	Add(ctx context.Context, a cni.Attachment) ([]netip.Addr, error)
	// Attached returns the addresses of a container that is connected to the namespace netns; ok is false if it is not, or not completely. While that
	// is unknown ok is true, so that no container is connected twice. It queries the network at most once per run of the program.
	Attached(id, netns string) (addrs []netip.Addr, ok bool)
	// MapsPorts says whether the network itself serves the container's hostPorts.
	MapsPorts(id string) bool
	// Del undoes Add; netns is the container's namespace, or "" if that is gone. An unknown container is not an error.
	Del(ctx context.Context, id, netns string) error
	// Collect releases the network of removed containers. It calls existing after reading its own record: a container exists before it is connected.
	Collect(ctx context.Context, existing cni.Existing) error
}

// Plugins are CNI plugins: *cni.Plugins.
type Plugins interface {
	Attachments
	// Load reads the configuration again and returns the network's name and file. The error says what an administrator has to do; no container is
	// connected before a Load succeeds.
	Load(ctx context.Context) (name, file string, err error)
	// Records lists the connected containers, including incomplete connections.
	Records() []cni.Attachment
	// Check asks the plugins whether a container is still connected correctly; nil if they cannot check.
	Check(ctx context.Context, id string) error
}
