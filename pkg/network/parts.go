package network

import (
	"context"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/network/endpoints"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// Parts are what a Manager works with. All are needed but Windows and Plugins.
type Parts struct {
	Engine  Engine
	Host    Host
	Windows Windows // nil on Linux
	Clock   clock.Clock
	Node    Node
	Pods    Pods
	Prober  Prober
	Reports Reports
	Plugins Plugins // mode CNI; nil in all others
}

// Engine is what the pod network asks of the container engine. The Manager calls it from one goroutine, but for Containers and Stop. Errors are
// those of the engine; what they concern is tried again with the next comparison.
type Engine interface {
	// Version is the engine's, as in 28.1.0.
	Version(ctx context.Context) (string, error)
	// Containers are the IDs of all containers that the engine has for pods, those that have ended among them.
	Containers(ctx context.Context) (map[string]bool, error)
	EngineNetworks
}

// EngineNetworks are the engine's networks and the containers on them.
type EngineNetworks interface {
	Networks(ctx context.Context) ([]pod.EngineNetwork, error)
	// EnsureNetwork makes want exist. One that is there and differs is an error.
	EnsureNetwork(ctx context.Context, want pod.EngineNetwork) error
	// RemoveNetwork fails while containers use the network; gone is no error.
	RemoveNetwork(ctx context.Context, name string) error
	// Members are the running containers that have their own addresses in the network, by ID.
	Members(ctx context.Context, network string) (map[string][]netip.Addr, error)
	// Connect puts a running container on the network, with these addresses.
	Connect(ctx context.Context, network, container string, addrs []netip.Addr) error
	// Stop ends a container in order, which takes up to its grace period; one that has ended is no error.
	Stop(ctx context.Context, container string) error
}

// Host is what the pod network asks of the system beside the engine, on every system. One goroutine calls it.
type Host interface {
	// Apply makes Rules, Gateways, Devices and Forward those of s, and connects the host to s.Bridge. The same State twice changes nothing; an
	// empty one removes every trace of ours.
	Apply(ctx context.Context, s State) error
	// Watch subscribes and returns; then it sends hints, until ctx ends, that others may have changed something. wait, which is never nil, returns
	// when nothing runs any more after that. With an error it hints of a part of the changes, or of none.
	Watch(ctx context.Context, hints wake.Signal) (wait func(), err error)
	// Look reads the host's interfaces and routes.
	Look() (Surroundings, error)
}

// Windows is what the pod network asks of Windows alone: HNS, and the adapters that virtual switches take. One goroutine calls it, but for the
// methods of endpoints.HNS.
type Windows interface {
	// MakeBridge makes the network in HNS, or adopts the one of its name, kind and range, and returns its ID. Idempotent.
	MakeBridge(b hns.Bridge) (id string, err error)
	// Addresses are those that this host's endpoints have in the HNS network with that ID.
	Addresses(network string) ([]netip.Addr, error)
	// MakeOverlay makes the network, or adopts it, and returns the hardware address at which other hosts reach its pods. An error that wraps
	// hns.ErrNoHostRoute comes with that: all else is right. Idempotent.
	MakeOverlay(o hns.Overlay) (vxlan.MAC, error)
	// RemoveOverlay removes the network with its endpoints; gone is no error.
	RemoveOverlay(name string) error
	// Uplink reads the static settings of the interface with address a; nil: no interface has it as a static one.
	Uplink(a netip.Addr) (*Uplink, error)
	// Restore gives the interface its settings back. What it has already is no error.
	Restore(ctx context.Context, u Uplink) error
	endpoints.HNS
}

// Node is this node's Node object as the pod network changes it.
type Node interface {
	// Annotate writes annotations; nil values are removed. Errors are the API server's.
	Annotate(ctx context.Context, changes map[string]*string) error
	// Event records an Event on the Node. What Unavailable returns may have changed with it. It must not block.
	Event(kind, reason, message string)
	// NetworkChanged is called after each attempt to bring about a State, with what Ready returns from then on. It must not block.
	NetworkChanged(ready error)
}

// Pods is what the pod network asks about pods, and reports on them.
type Pods interface {
	// DNS is a pod's resolver configuration, which containers of Windows get together with their network.
	DNS(p *v1.Pod) (pod.DNS, error)
	// Event records an Event on a pod. It must not block.
	Event(namespace, name, uid, kind, reason, message string)
}

// Prober sends packets to see whether pods' packets would arrive. An invalid from is any address. Calls block for seconds at most.
type Prober interface {
	// ToServer connects from the address from to the API server.
	ToServer(ctx context.Context, from netip.Addr) error
	// ToPods connects to another node by an address of its pods' range to. A refusal has arrived, too.
	ToPods(ctx context.Context, from netip.Addr, to netip.Prefix) error
}

// Reports are what the proxy of this host says about the routes to other nodes.
type Reports interface {
	// Read returns what is wrong now; nothing: all is right, or no proxy runs.
	Read() ([]report.Trouble, error)
	// Watch calls changed after each change until ctx ends, and returns nil then. changed does not block.
	Watch(ctx context.Context, changed func()) error
}

// Attachments connect containers to a network where the engine does not. *cni.Plugins and *endpoints.Endpoints implement it. Calls for different
// containers may be concurrent; those for one container are not.
type Attachments interface {
	// Add connects a running container and returns its addresses. Idempotent: one that is connected keeps what it has. What fails is undone,
	// now or by Collect. It blocks as long as plugins or HNS take.
	Add(ctx context.Context, a cni.Attachment) ([]netip.Addr, error)
	// Attached returns the addresses of a container that is connected to the namespace netns; ok false: it is not, or not wholly. While that is not
	// known ok is true, so that no container is connected twice. It asks the network at most once in the program's life.
	Attached(id, netns string) (addrs []netip.Addr, ok bool)
	// MapsPorts says whether the network itself serves the container's hostPorts.
	MapsPorts(id string) bool
	// Del takes back what Add gave; netns is the container's namespace, "" once it is gone. A container that is not known is no error.
	Del(ctx context.Context, id, netns string) error
	// Collect takes back what containers have that no longer exist. It calls exists, which lists those that do, after reading its own record: a
	// container is there before it is connected.
	Collect(ctx context.Context, exists func(context.Context) (map[string]bool, error)) error
}

// Plugins are CNI plugins: *cni.Plugins.
type Plugins interface {
	Attachments
	// Load reads the configuration again and returns the network's name and file. The error says what an administrator has to do; until a Load
	// without one no container is connected.
	Load(ctx context.Context) (name, file string, err error)
	// Records lists what is connected, halfway connected containers among them.
	Records() []cni.Attachment
	// Check asks the plugins whether a container is still connected as they left it; nil where they cannot know.
	Check(ctx context.Context, id string) error
}
