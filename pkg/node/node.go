// Package node is the agent's face towards the cluster: the Node object, its status and its Lease.
//
//	host.Facts, engine, images, network, pressure --> Status(...) v1.NodeStatus --patch when it differs--> API server
//	a timer                                       --> Lease
//
// Status is pure. Manager registers the node, compares and patches; it asks only for what NodeRestriction allows a node.
package node

import (
	"context"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/host"
)

// Config is what the user decides about the Node. Zero values of the last group mean upstream's defaults.
type Config struct {
	Name         string            // of the Node
	Hostname     string            // for the address of type Hostname and the label kubernetes.io/hostname; "": Name
	Labels       map[string]string // --node-labels; New refuses those that NodeRestriction would
	Taints       []v1.Taint        // --register-with-taints; only a node that is new gets them, for NodeRestriction refuses later changes
	ProviderID   string
	Unregistered bool // do not create the Node: --register-node=false

	MaxPods        int // --max-pods
	PodsPerCore    int // 0: no such limit
	SystemReserved v1.ResourceList
	KubeReserved   v1.ResourceList
	EvictionHard   map[string]string // signal -> quantity or percentage; nil: memory.available<100Mi and upstream's others

	Port            int32         // of the kubelet's HTTPS API
	MaxImages       int           // 0: 50; negative: all
	UpdateFrequency time.Duration // between two comparisons; 0: 10 s
	ReportFrequency time.Duration // of heartbeats in the status; 0: 5 min
	LeaseDuration   time.Duration // 0: 40 s; renewed each quarter of it
}

// Parts is where a Manager gets its facts and puts its results. Functions may block for as long as their ctx, or a few seconds.
type Parts struct {
	Client       kubernetes.Interface
	Node         func() *v1.Node // own Node as last seen by a watch; nil (the function, or what it returns): it is asked for
	Facts        func() (host.Facts, error)
	Addresses    func() ([]netip.Addr, error)              // as host.NodeAddress
	Disk         func() (host.Disk, error)                 // of the kubelet's root directory
	RuntimeInfo  func(ctx context.Context) (string, error) // version of the engine; an error makes the node not ready
	Images       func(ctx context.Context) ([]v1.ContainerImage, error)
	NetworkReady func() error                 // nil: ready
	Pressure     func() Pressure              // nil: none
	VolumesInUse func() []v1.UniqueVolumeName // nil: the field is left alone
	Events       record.EventRecorder
	Clock        clock.WithTicker // nil: the real one
}

// Pressure says which resource of the node runs out.
type Pressure struct{ Memory, Disk, PID bool }

// Manager keeps the Node object and the Lease.
type Manager struct {
}

// New makes a Manager. The error names what of config is wrong.
func New(config Config, parts Parts) (*Manager, error) { return &Manager{}, nil }

// Run registers the node, trying until it succeeds, and keeps status and Lease until ctx ends, which is no error.
func (m *Manager) Run(ctx context.Context) error { return nil }

// Kick has the status compared and, if it differs, sent now instead of at the next tick. It never blocks.
func (m *Manager) Kick() {}

// Registered is closed when the Node is known to exist.
func (m *Manager) Registered() <-chan struct{} { return nil }
