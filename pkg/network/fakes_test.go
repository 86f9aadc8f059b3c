package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// engine is an in-memory container engine.
type engine struct {
	mu       sync.Mutex
	networks map[string]pod.EngineNetwork
	used     bool // containers are connected
	down     error
	made     int
	version  string

	containers map[string]bool
	members    map[string][]netip.Addr
	stopped    []string
}

func (e *engine) Networks(context.Context) ([]pod.EngineNetwork, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []pod.EngineNetwork
	for _, n := range e.networks {
		out = append(out, n)
	}
	return out, e.down
}

func (e *engine) EnsureNetwork(_ context.Context, want pod.EngineNetwork) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != nil {
		return e.down
	}
	if _, ok := e.networks[want.Name]; ok {
		return errors.New("network exists")
	}
	e.made++
	e.networks[want.Name] = want
	return nil
}

// restart simulates Docker before 27.5 starting on a Windows whose HNS has the networks (moby daemon/daemon_windows.go initNetworkController): known
// networks whose HNS ID matches, including case, keep their options and lose their labels; others are dropped, and adopted with HNS' data.
func (e *engine) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, n := range e.networks {
		id := strings.ToUpper(n.Options[optionHNS])
		if n.Options[optionHNS] != id {
			n.Options = map[string]string{optionHNS: id, optionName: n.Options[optionName]}
		}
		n.Labels = nil
		e.networks[name] = n
	}
}

func (e *engine) RemoveNetwork(_ context.Context, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.used {
		return errors.New("network has active endpoints")
	}
	delete(e.networks, name)
	return nil
}

func (e *engine) Members(context.Context, string) (map[string][]netip.Addr, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.members, e.down
}

func (e *engine) Connect(_ context.Context, network, id string, addrs []netip.Addr) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for other, has := range e.members {
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(has, a) }) {
			return fmt.Errorf("address already in use by %s", other)
		}
	}
	if _, ok := e.networks[network]; !ok || e.down != nil {
		return cmp.Or(e.down, errors.New("no such network"))
	}
	e.members[id] = addrs
	return nil
}

func (e *engine) Stop(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = append(e.stopped, id)
	delete(e.members, id)
	return e.down
}

func (e *engine) Version(context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.version, e.down
}

func (e *engine) Existing(context.Context, []string) (map[string]bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.containers, e.down
}

// system is an in-memory Host.
type system struct {
	mu      sync.Mutex
	state   State
	applied int
	fail    error
	around  Surroundings
	hints   chan struct{}
}

func (s *system) Apply(_ context.Context, want State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.state, s.applied = want, s.applied+1
	return nil
}

func (s *system) Look() (Surroundings, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.around, nil
}

func (s *system) Watch(ctx context.Context, hints wake.Signal) (wait func(), err error) {
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.hints:
				hints.Send()
			}
		}
	})
	return group.Wait, nil
}

// windowsHost is an in-memory HNS with the adapters of Windows.
type windowsHost struct {
	down error

	hnsID     string
	connected []netip.Addr

	uplink     *Uplink
	losing     bool    // once read, the uplink changes to left
	left       *Uplink // of it, then
	restorable bool
	restored   int

	networks map[string]hns.Overlay
	bridges  map[string]hns.Bridge
	list     map[hns.ID]hns.PodEndpoint
	unrouted bool // HostRoute is refused
	// As last requested.
	completed hns.Overlay
	bridge    hns.Bridge
	made      int
}

var routerMAC = vxlan.MAC{0, 0x15, 0x5d, 0x4b, 0x1c, 0x8f}

func (w *windowsHost) MakeBridge(b hns.Bridge) (hns.ID, error) {
	w.bridge = b
	if w.down != nil {
		return hns.ID{}, w.down
	}
	if have, ok := w.bridges[b.Name]; ok && have.Subnet != b.Subnet && b.Router.IsValid() { // otherwise the engine has removed it
		return hns.ID{}, fmt.Errorf("%w: %s", hns.ErrDiffers, have.Subnet)
	}
	w.bridges[b.Name] = b
	return hns.IDOf(w.hnsID), nil
}

func (w *windowsHost) RemoveBridge(name string) error {
	if _, ok := w.bridges[name]; ok {
		clear(w.list)
	}
	delete(w.bridges, name)
	return w.down
}

func (w *windowsHost) Addresses(hns.ID) ([]netip.Addr, error) { return w.connected, w.down }

func (w *windowsHost) Uplink(netip.Addr) (*Uplink, error) {
	u := w.uplink
	if w.losing {
		w.uplink = w.left
	}
	return u, w.down
}

func (w *windowsHost) Restore(_ context.Context, u Uplink) error {
	w.restored++
	if w.restorable {
		w.uplink = &u
	}
	return nil
}

func (w *windowsHost) MakeOverlay(want hns.Overlay) (vxlan.MAC, error) {
	if w.down != nil {
		return vxlan.MAC{}, w.down
	}
	if have, ok := w.networks[want.Name]; ok && have.Subnet != want.Subnet {
		return vxlan.MAC{}, fmt.Errorf("%w: %s", hns.ErrDiffers, have.Subnet)
	}
	w.networks[want.Name] = want
	if w.unrouted {
		return routerMAC, hns.ErrNoHostRoute
	}
	return routerMAC, nil
}

func (w *windowsHost) CompleteEndpoints(o hns.Overlay) error {
	w.completed = o
	return w.down
}

func (w *windowsHost) RemoveOverlay(name string) error {
	delete(w.networks, name)
	clear(w.list)
	return w.down
}

func (w *windowsHost) PodEndpoints(network string) ([]hns.PodEndpoint, error) {
	_, overlay := w.networks[network]
	if _, bridge := w.bridges[network]; !overlay && !bridge {
		return nil, w.down
	}
	return slices.Collect(maps.Values(w.list)), w.down
}

func (w *windowsHost) MakeEndpoint(_ hns.PodNetwork, e hns.PodEndpoint) (hns.ID, error) {
	w.made++
	e.ID = hns.IDOf(fmt.Sprint("id-", w.made))
	w.list[e.ID] = e
	return e.ID, w.down
}

func (w *windowsHost) AttachEndpoint(id hns.ID, container string) error {
	e := w.list[id]
	e.Attached = append(slices.Clone(e.Attached), container)
	w.list[id] = e
	return w.down
}

func (w *windowsHost) RemoveEndpoint(e hns.PodEndpoint) error {
	delete(w.list, e.ID)
	return w.down
}

// node is a Node object that records what is written to it.
type node struct {
	refuse      error
	annotations map[string]string
	patches     int
	events      []string // kind reason: message
}

func (n *node) Annotate(_ context.Context, changes map[string]*string) error {
	if n.refuse != nil {
		return n.refuse
	}
	n.patches++
	for k, v := range changes {
		if v == nil {
			delete(n.annotations, k)
			continue
		}
		n.annotations[k] = *v
	}
	return nil
}

func (n *node) Event(kind, reason, message string) {
	n.events = append(n.events, kind+" "+reason+": "+message)
}

func (n *node) NetworkChanged(error) {}

// reasons are the kinds and reasons of the Events.
func (n *node) reasons() (out []string) {
	for _, e := range n.events {
		reason, _, _ := strings.Cut(e, ":")
		out = append(out, reason)
	}
	return out
}

// podsTold are pods that record their Events.
type podsTold struct {
	events []string      // namespace/name uid reason: message
	news   chan struct{} // an Event
}

// DNS returns the same resolver configuration for all pods except those of one namespace.
func (p *podsTold) DNS(of *v1.Pod) (pod.DNS, error) {
	if of.Namespace == "unresolved" {
		return pod.DNS{}, errors.New("no such file")
	}
	return pod.DNS{Servers: []string{"10.96.0.10"}, Searches: []string{of.Namespace + ".svc.cluster.local"}, Options: []string{"ndots:5"}}, nil
}

func (p *podsTold) Event(namespace, name, uid, _, reason, message string) {
	p.events = append(p.events, fmt.Sprintf("%s/%s %s %s: %s", namespace, name, uid, reason, message))
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// ways simulate whether packets arrive.
type ways struct {
	server, pods error // nil: packets arrive
	from         netip.Addr
	probed       []string
}

func (w *ways) ToServer(_ context.Context, from netip.Addr) error {
	w.from = from
	return w.server
}

func (w *ways) ToPods(_ context.Context, from netip.Addr, to netip.Prefix) error {
	w.probed = append(w.probed, fmt.Sprintf("%s to %s", from, to))
	return w.pods
}

// proxy is a fake source of reports.
type proxy struct {
	list []report.Trouble
	err  error
	now  chan struct{} // a change

	watched atomic.Bool // Watch runs
}

func (p *proxy) Read() ([]report.Trouble, error) { return p.list, p.err }

func (p *proxy) Watch(ctx context.Context, changed func()) error {
	p.watched.Store(true)
	defer p.watched.Store(false)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.now:
			changed()
		}
	}
}

// rig is a Manager among fakes.
type rig struct {
	*Manager
	e       *engine
	s       *system
	w       *windowsHost
	file    string // that stores the uplink
	node    *node
	pods    *podsTold
	ways    *ways
	proxy   *proxy
	plugins *plugins
	clock   *testclock.FakeClock
	cluster Cluster        // nil: nothing is learned
	kernel  podlink.Kernel // for pods' interfaces; nil: none
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := &rig{
		e: &engine{networks: map[string]pod.EngineNetwork{}, version: "20.10.24", containers: map[string]bool{"box": true}}, s: &system{hints: make(chan struct{}, 1)},
		w:    &windowsHost{networks: map[string]hns.Overlay{}, bridges: map[string]hns.Bridge{}, list: map[hns.ID]hns.PodEndpoint{}},
		node: &node{annotations: map[string]string{}}, pods: &podsTold{news: make(chan struct{}, 1)}, ways: &ways{}, proxy: &proxy{now: make(chan struct{})},
	}
	r.start(t, cfg)
	return r
}

// start starts the Manager of another agent on the same host, with a new clock.
func (r *rig) start(t *testing.T, cfg Config) {
	t.Helper()
	r.clock = testclock.NewFakeClock(time.Unix(1000, 0))
	r.startAt(t, cfg, r.clock)
}

func (r *rig) startAt(t *testing.T, cfg Config, c clock.Clock) {
	t.Helper()
	parts := Parts{Engine: r.e, Host: r.s, Windows: r.w, Clock: c, Node: r.node, Pods: r.pods, Prober: r.ways, Reports: r.proxy, Cluster: r.cluster, PodLinks: r.kernel}
	if cfg.Mode == CNI {
		if r.plugins == nil {
			r.plugins = newPluginsFake()
		}
		parts.Plugins = r.plugins
	}
	m, err := New(cfg, parts)
	if err != nil {
		t.Fatal(err)
	}
	r.Manager = m
}

// lasting compares until a fault has lasted.
func (r *rig) lasting(ctx context.Context) {
	r.sync(ctx)
	r.clock.Step(patience)
	r.sync(ctx)
	r.sync(ctx)
}

// said is the Node's condition.
func (r *rig) said() string {
	c := r.Unavailable()
	if c == nil {
		return "nothing"
	}
	if c.Ready {
		return "available " + c.Reason
	}
	return c.Reason + ": " + c.Message
}

func nodeWith(cidrs ...string) *v1.Node { return &v1.Node{Spec: v1.NodeSpec{PodCIDRs: cidrs}} }

func wantErr(t *testing.T, m *Manager, part string) {
	t.Helper()
	_, err := m.Join(&v1.Pod{})
	if part == "" {
		if err != nil || m.Ready() != nil {
			t.Errorf("not ready: %v", err)
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), part) || m.Ready() == nil {
		t.Errorf("Join: %v, Ready: %v, want %q", err, m.Ready(), part)
	}
}
