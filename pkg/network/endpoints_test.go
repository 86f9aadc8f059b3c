package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// overlays is an HNS in memory, beneath the other fakes' host.
type overlays struct {
	Host
	uplink   *Uplink
	networks map[string]hns.Overlay
	list     map[string]hns.PodEndpoint // by ID
	running  map[string]bool            // containers that can be connected; nil: all
	down     error
	unrouted bool // HostRoute is refused
	made     int
	restored int
}

var routerMAC = vxlan.MAC{0, 0x15, 0x5d, 0x4b, 0x1c, 0x8f}

func newOverlays() *overlays {
	return &overlays{networks: map[string]hns.Overlay{}, list: map[string]hns.PodEndpoint{}}
}

func (o *overlays) Changes(context.Context) (<-chan struct{}, error) { return nil, nil }
func (o *overlays) Look() (Surroundings, error)                      { return Surroundings{}, nil }
func (o *overlays) Uplink(netip.Addr) (*Uplink, error)               { return o.uplink, nil }
func (o *overlays) Apply(context.Context, State) error               { return nil }
func (o *overlays) Restore(context.Context, Uplink) error            { o.restored++; return nil }

func (o *overlays) MakeOverlay(want hns.Overlay) (vxlan.MAC, error) {
	if o.down != nil {
		return vxlan.MAC{}, o.down
	}
	if have, ok := o.networks[want.Name]; ok && have.Subnet != want.Subnet {
		return vxlan.MAC{}, fmt.Errorf("%w: %s", hns.ErrDiffers, have.Subnet)
	}
	o.networks[want.Name] = want
	if o.unrouted {
		return routerMAC, hns.ErrNoHostRoute
	}
	return routerMAC, nil
}

func (o *overlays) RemoveOverlay(name string) error {
	delete(o.networks, name)
	clear(o.list)
	return o.down
}

func (o *overlays) PodEndpoints(network string) ([]hns.PodEndpoint, error) {
	if _, ok := o.networks[network]; !ok {
		return nil, o.down
	}
	return slices.Collect(maps.Values(o.list)), o.down
}

func (o *overlays) MakeEndpoint(in hns.Overlay, e hns.PodEndpoint) (string, error) {
	have, ok := o.networks[in.Name]
	for _, other := range o.list {
		if other.Addr == e.Addr || other.Container == e.Container {
			return "", fmt.Errorf("%s of %s is there", e.Addr, e.Container)
		}
	}
	if o.down != nil || !ok || !have.Subnet.Contains(e.Addr) || len(e.Attached) > 0 {
		return "", errors.Join(o.down, fmt.Errorf("HNS refuses %+v", e))
	}
	o.made++
	e.ID = fmt.Sprint("id-", o.made)
	o.list[e.ID] = e
	return e.ID, nil
}

func (o *overlays) AttachEndpoint(id, container string) error {
	e, ok := o.list[id]
	if o.down != nil || !ok || o.running != nil && !o.running[container] {
		return errors.Join(o.down, fmt.Errorf("cannot connect %s to %s", container, id))
	}
	if !slices.Contains(e.Attached, container) {
		e.Attached = append(slices.Clone(e.Attached), container)
	}
	o.list[id] = e
	return nil
}

func (o *overlays) RemoveEndpoint(e hns.PodEndpoint) error {
	delete(o.list, e.ID)
	return o.down
}

var theOverlay = hns.Overlay{Name: "winkube.4096", Subnet: netip.MustParsePrefix("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.1")}

// joined are endpoints on a network that is there.
func joined(t *testing.T, host *overlays) *endpoints {
	t.Helper()
	if _, err := host.MakeOverlay(theOverlay); err != nil {
		t.Fatal(err)
	}
	e := newEndpoints(host, theOverlay.Name)
	e.use(theOverlay)
	if _, _, err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

func infra(id string) cni.Attachment {
	return cni.Attachment{ContainerID: id, SandboxID: id, Netns: "none"}
}

func member(id, of string) cni.Attachment {
	return cni.Attachment{ContainerID: id, SandboxID: of, Netns: "container:" + of, Borrowed: true}
}

// TestEndpoints: a pod has one endpoint, to which each of its containers is connected, and which goes with its infra container.
func TestEndpoints(t *testing.T) {
	host := newOverlays()
	e := joined(t, host)
	attached := func(a cni.Attachment, want string) {
		t.Helper()
		addrs, ok := e.Attached(a.ContainerID, a.Netns)
		if got := fmt.Sprint(addrs); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %s, %t, want %q", a.ContainerID, got, ok, want)
		}
	}
	if _, err := e.Add(t.Context(), member("c1", "s1")); err == nil || !strings.Contains(err.Error(), "has no endpoint") {
		t.Errorf("a container before its pod: %v", err)
	}
	s1 := infra("s1")
	s1.DNS = &cni.DNS{Servers: []string{"10.96.0.10"}, Searches: []string{"a.svc.cluster.local"}}
	for _, a := range []cni.Attachment{s1, member("c1", "s1"), member("c2", "s1"), infra("s2"), s1} {
		if _, err := e.Add(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	attached(s1, "[10.244.1.3]")
	attached(member("c2", "s1"), "[10.244.1.3]")
	attached(member("c3", "s1"), "")
	attached(infra("s2"), "[10.244.1.4]")
	if one := host.list["id-1"]; fmt.Sprint(one.DNS, one.Searches, one.Attached) != "[10.96.0.10] [a.svc.cluster.local] [s1 c1 c2]" || host.made != 2 {
		t.Errorf("%+v, %d made", one, host.made)
	}
	next := newEndpoints(host, theOverlay.Name) // an agent that was killed
	next.use(theOverlay)
	if _, _, err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	e = next
	attached(member("c1", "s1"), "[10.244.1.3]")
	for _, a := range []cni.Attachment{member("c1", "s1"), s1, s1} {
		if err := e.Del(t.Context(), a.ContainerID, a.Netns); err != nil {
			t.Fatal(err)
		}
	}
	attached(s1, "")
	if len(host.list) != 1 {
		t.Errorf("left are %v", host.list)
	}
	if err := e.Collect(t.Context(), func(context.Context) (map[string]bool, error) { return map[string]bool{"s1": true}, nil }); err != nil || len(host.list) > 0 {
		t.Errorf("%v; of containers that are gone stays %v", err, host.list)
	}
}

// TestEndpointsOfKilledAgent: an endpoint that was made and not connected is connected, not made again.
func TestEndpointsOfKilledAgent(t *testing.T) {
	host := newOverlays()
	e := joined(t, host)
	host.running = map[string]bool{}
	if _, err := e.Add(t.Context(), infra("s1")); err == nil {
		t.Fatal("a container that does not run was connected")
	}
	if _, ok := e.Attached("s1", "none"); ok || len(host.list) != 1 {
		t.Errorf("attached %t, %v", ok, host.list)
	}
	host.running["s1"] = true
	next := newEndpoints(host, theOverlay.Name)
	next.use(theOverlay)
	if _, _, err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if addrs, err := next.Add(t.Context(), infra("s1")); err != nil || fmt.Sprint(addrs) != "[10.244.1.3]" || host.made != 1 {
		t.Errorf("%v, %v, %d made", addrs, err, host.made)
	}
}

// TestEndpointsLost: what an HNS that crashed has lost is told once it answers again, and no container gets a second endpoint.
func TestEndpointsLost(t *testing.T) {
	host := newOverlays()
	e := joined(t, host)
	for _, id := range []string{"s1", "s2"} {
		if _, err := e.Add(t.Context(), infra(id)); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Unix(1000, 0)
	host.down = hns.ErrDown
	if _, _, err := e.Load(t.Context()); !errors.Is(err, hns.ErrDown) {
		t.Error(err)
	}
	if cut := e.cut(nil, now); len(cut) > 0 {
		t.Errorf("of an HNS that does not answer is concluded that %v are lost", cut)
	}
	host.down = nil
	delete(host.list, "id-1")
	if _, _, err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	cut := e.cut(nil, now)
	if cut = e.cut(cut, now.Add(time.Minute)); len(cut) != 1 || !cut["s1"].Equal(now) {
		t.Errorf("cut are %v", cut)
	}
	if _, ok := e.Attached("s1", "none"); !ok {
		t.Error("its pod would be given a second endpoint")
	}
	if _, err := e.Add(t.Context(), member("c1", "s1")); err == nil || !strings.Contains(err.Error(), "made anew") {
		t.Error(err)
	}
	host.list["id-1"] = hns.PodEndpoint{ID: "id-1", Container: "s1", Addr: netip.MustParseAddr("10.244.1.3"), Attached: []string{"s1"}}
	if _, _, err := e.Load(t.Context()); err != nil || len(e.cut(nil, now)) > 0 {
		t.Errorf("HNS put it back: %v, %v", err, e.cut(nil, now))
	}
}

// TestEndpointsAfterRestart: an agent that has just begun takes no pod for one without network, whether HNS answers or not.
func TestEndpointsAfterRestart(t *testing.T) {
	host := newOverlays()
	if _, err := joined(t, host).Add(t.Context(), infra("s1")); err != nil {
		t.Fatal(err)
	}
	next := newEndpoints(host, theOverlay.Name)
	host.down = hns.ErrDown
	if addrs, ok := next.Attached("s1", "none"); !ok || len(addrs) > 0 {
		t.Errorf("HNS is down: %v, %t", addrs, ok)
	}
	host.down = nil
	if addrs, ok := next.Attached("s1", "none"); !ok || fmt.Sprint(addrs) != "[10.244.1.3]" {
		t.Errorf("HNS is back: %v, %t", addrs, ok)
	}
	if _, err := next.Add(t.Context(), infra("s2")); err == nil || host.made != 1 {
		t.Errorf("an endpoint was made before its network: %v", err)
	}
}

// tunnelling is a Manager of a Windows host in mode overlay.
func tunnelling(t *testing.T, host *overlays, engine *engine, events *[]string) (*Manager, *map[string]*string) {
	t.Helper()
	notes := map[string]*string{}
	m, err := New(Config{Mode: Overlay, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}, NonMasquerade: prefixes("10.244.0.0/16")}, Parts{Engine: engine, Host: host,
		Clock:    testclock.NewFakeClock(time.Unix(1000, 0)),
		Annotate: func(_ context.Context, changes map[string]*string) error { maps.Copy(notes, changes); return nil },
		Event:    func(_, reason, message string) { *events = append(*events, reason+": "+message) }})
	if err != nil {
		t.Fatal(err)
	}
	m.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1"}, Spec: v1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}})
	return m, &notes
}

// TestManagerTunnels: the network is made, its end announced with HNS' hardware address, pods join none of the engine's networks; a pod whose
// endpoint is lost is ended.
func TestManagerTunnels(t *testing.T) {
	host, e, events := newOverlays(), &engine{networks: map[string]pod.EngineNetwork{}}, []string{}
	host.unrouted = true
	m, notes := tunnelling(t, host, e, &events)
	for range 2 {
		if err := m.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if join, err := m.Join(&v1.Pod{}); err != nil || join != "none" {
		t.Errorf("%s, %v", join, err)
	}
	data := (*notes)["flannel.alpha.coreos.com/backend-data"]
	if data == nil || *data != `{"VNI":4096,"VtepMAC":"00:15:5d:4b:1c:8f"}` || *(*notes)["flannel.alpha.coreos.com/public-ip"] != "10.1.0.11" {
		t.Errorf("%v", *notes)
	}
	if len(events) != 1 || !strings.HasPrefix(events[0], "HostRouteRefused: ") {
		t.Errorf("%v", events)
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: types.UID("u1")}}
	o := pod.Observed{Sandboxes: []pod.Sandbox{{ID: "s1", Running: true, Network: "none"}}}
	if !m.Attachments(p, o)["s1"].Waits {
		t.Error("the sandbox waits for nothing")
	}
	if err := m.Attach(t.Context(), p, pod.Member{ID: "s1", SandboxID: "s1"}); err != nil {
		t.Fatal(err)
	}
	o = pod.Observed{Sandboxes: []pod.Sandbox{{ID: "s1", Running: true, Network: "none"}}}
	if a := m.Attachments(p, o)["s1"]; a.Waits || fmt.Sprint(a.Addresses) != "[10.244.1.3]" {
		t.Errorf("%+v", a)
	}
	clear(host.list) // HNS crashed
	if err := m.sync(t.Context()); err == nil || len(e.stopped) > 0 {
		t.Errorf("%v; ended at once are %v", err, e.stopped)
	}
	m.parts.Clock.(*testclock.FakeClock).Step(rejoin)
	for range 2 {
		if err := m.sync(t.Context()); err != nil || !slices.Equal(e.stopped, []string{"s1"}) {
			t.Errorf("%v; ended are %v", err, e.stopped)
		}
		m.parts.Clock.(*testclock.FakeClock).Step(rejoin)
	}
	if len(events) != 2 || !strings.HasPrefix(events[1], "EndpointsLost: 1 containers") {
		t.Errorf("%v", events)
	}
}

// TestLeaving: an adapter carries networks of one kind, so that that of a former mode goes first, unless pods are on it.
func TestLeaving(t *testing.T) {
	events := []string{}
	e := &engine{used: true, networks: map[string]pod.EngineNetwork{"winkube": {Name: "winkube", Driver: "l2bridge", Labels: map[string]string{LabelPods: "pods"}}}}
	host := newOverlays()
	m, _ := tunnelling(t, host, e, &events)
	if err := m.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "drain this node") || len(host.networks) > 0 {
		t.Errorf("to overlay, with pods: %v", err)
	}
	e.used = false
	if err := m.sync(t.Context()); err != nil || len(e.networks) > 0 || len(host.networks) != 1 {
		t.Errorf("to overlay: %v, %v, %v", err, e.networks, host.networks)
	}
	back := &Manager{cfg: Config{Mode: HostGateway}, over: newOverlaid(host, HostGateway)}
	host.list["id-9"] = hns.PodEndpoint{ID: "id-9", Container: "s9", Addr: netip.MustParseAddr("10.244.1.9"), Attached: []string{"s9"}}
	if err := back.leaveOverlay(); err == nil || !strings.Contains(err.Error(), "drain this node") {
		t.Errorf("to host-gateway, with pods: %v", err)
	}
	clear(host.list)
	if err := back.leaveOverlay(); err != nil || len(host.networks) > 0 {
		t.Errorf("to host-gateway: %v, %v", err, host.networks)
	}
}

// TestRangeOfOverlay: a network with pods is not made anew with another range, which the Node says; one without is.
func TestRangeOfOverlay(t *testing.T) {
	host, events := newOverlays(), []string{}
	m, _ := tunnelling(t, host, &engine{networks: map[string]pod.EngineNetwork{}}, &events)
	before := theOverlay
	before.Subnet = netip.MustParsePrefix("10.244.9.0/24")
	if _, err := host.MakeOverlay(before); err != nil {
		t.Fatal(err)
	}
	host.list["id-9"] = hns.PodEndpoint{ID: "id-9", Container: "s9", Addr: netip.MustParseAddr("10.244.9.3"), Attached: []string{"s9"}}
	wrong, err := m.compare(t.Context())
	if wrong.Reason != rangeChanged || !errors.Is(err, hns.ErrDiffers) || !strings.Contains(wrong.Message, "drain this node") || host.networks["winkube.4096"].Subnet != before.Subnet {
		t.Errorf("with a pod: %+v, %v", wrong, err)
	}
	clear(host.list)
	if wrong, err := m.compare(t.Context()); wrong.Reason != "" || !errors.Is(err, hns.ErrDiffers) || len(host.networks) > 0 {
		t.Errorf("without: %+v, %v; networks %v", wrong, err, host.networks)
	}
	if _, err := m.compare(t.Context()); err != nil || host.networks["winkube.4096"].Subnet != theOverlay.Subnet {
		t.Errorf("afterwards: %v, networks %v", err, host.networks)
	}
}

// TestUplinkOfOverlay: an overlay that costs the host its address for good is removed.
func TestUplinkOfOverlay(t *testing.T) {
	host, events := newOverlays(), []string{}
	host.uplink = &Uplink{Interface: "Ethernet", Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.11/24")}}
	m, _ := tunnelling(t, host, &engine{networks: map[string]pod.EngineNetwork{}}, &events)
	if err := m.guardUplink(); err != nil {
		t.Fatal(err)
	}
	host.uplink = nil // Windows lost it with the switch
	for range restorations + 2 {
		if err := m.sync(t.Context()); err == nil {
			t.Fatal("nothing is wrong")
		}
		m.parts.Clock.(*testclock.FakeClock).Step(settling)
	}
	if len(host.networks) > 0 || host.restored != restorations || len(events) != 1 || !strings.HasPrefix(events[0], addressLost) {
		t.Errorf("networks %v, restored %d times, events %v", host.networks, host.restored, events)
	}
	if err := m.sync(t.Context()); err == nil || len(host.networks) > 0 {
		t.Errorf("%v; it was made again", err)
	}
}
