package network

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

func anUplink() *Uplink {
	return &Uplink{Interface: "Ethernet", Addresses: prefixes("10.1.0.11/24", "10.244.1.9/24"), Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
		DNS: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}
}

func guardedRig(t *testing.T) (*Manager, *engine, *system, *testclock.FakeClock, *[]string) {
	t.Helper()
	m, e, s := newRig(t, Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}})
	events := &[]string{}
	m.parts.Event = func(_, reason, _ string) { *events = append(*events, reason) }
	s.hnsID, s.uplink = "id", anUplink()
	m.SetNode(nodeWith("10.244.1.0/24"))
	return m, e, s, m.parts.Clock.(*testclock.FakeClock), events
}

// losing is a host whose address goes when the network is made.
type losing struct {
	*system
	left *Uplink
}

func (l *losing) Uplink(a netip.Addr) (u *Uplink, err error) {
	u, err = l.system.Uplink(a)
	l.system.uplink = l.left
	return u, err
}

func TestUplinkKept(t *testing.T) {
	m, e, s, clock, events := guardedRig(t)
	if err := m.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if label := e.networks["winkube"].Labels[LabelUplink]; !strings.Contains(label, "10.1.0.11/24") || strings.Contains(label, "10.244.1.9") {
		t.Errorf("the label is %q", label)
	}
	s.uplink = nil // the administrator's affair: it had outlived the network's making
	clock.Step(time.Hour)
	if err := m.sync(t.Context()); err != nil || s.restored > 0 || len(*events) > 0 {
		t.Errorf("%v, restored %d times, %v", err, s.restored, *events)
	}
}

func TestUplinkRestored(t *testing.T) {
	route := anUplink()
	route.Gateways = nil
	for _, left := range []*Uplink{nil, route} {
		m, _, s, clock, events := guardedRig(t)
		m.parts.Host = &losing{s, left}
		if err := m.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "the host lacks") {
			t.Fatalf("%v", err)
		}
		m.parts.Host, s.restorable = s, true
		clock.Step(settling - 1)
		if err := m.sync(t.Context()); err == nil || s.restored > 0 {
			t.Errorf("too early: %v, %d", err, s.restored)
		}
		clock.Step(1)
		_ = m.sync(t.Context())
		if err := m.sync(t.Context()); err != nil || s.restored != 1 || !slices.Equal(*events, []string{"HostAddressRestored"}) {
			t.Errorf("%v, restored %d times, %v", err, s.restored, *events)
		}
		want := anUplink()
		want.Addresses = want.Addresses[:1]
		if !reflect.DeepEqual(s.uplink, want) {
			t.Errorf("restored %+v", s.uplink)
		}
		wantErr(t, m, "")
	}
}

func TestUplinkRolledBack(t *testing.T) {
	m, e, s, clock, events := guardedRig(t)
	m.parts.Host = &losing{s, nil}
	for range restorations + 2 {
		_ = m.sync(t.Context())
		m.parts.Host = s
		clock.Step(settling)
	}
	if err := m.sync(t.Context()); err == nil || len(e.networks) > 0 || s.restored != restorations || e.made != 1 {
		t.Errorf("%v, networks %v, restored %d times, made %d times", err, e.networks, s.restored, e.made)
	}
	if !slices.Contains(*events, addressLost) {
		t.Errorf("events %v", *events)
	}
	wantErr(t, m, "cost the host addresses 10.1.0.11/24 and was removed")
}

// TestUplinkAfterReboot: the label says what the host had, as long as the kubelet is still told to be that node.
func TestUplinkAfterReboot(t *testing.T) {
	m, e, s, _, _ := guardedRig(t)
	if err := m.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		node     netip.Addr
		restored int
	}{{netip.MustParseAddr("10.1.0.99"), 0}, {nodeFour, 1}} {
		next, _, _ := newRig(t, Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{c.node}})
		next.parts.Engine, next.parts.Host = e, s
		next.SetNode(nodeWith("10.244.1.0/24"))
		s.uplink, s.restorable, s.restored = nil, true, 0
		for range 3 {
			_ = next.sync(t.Context())
			next.parts.Clock.(*testclock.FakeClock).Step(settling)
		}
		if err := next.sync(t.Context()); err != nil || s.restored != c.restored {
			t.Errorf("node %s: %v, restored %d times, want %d", c.node, err, s.restored, c.restored)
		}
	}
}
