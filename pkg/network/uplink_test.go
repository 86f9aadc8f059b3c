package network

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func anUplink() *Uplink {
	return &Uplink{Interface: "Ethernet", Addresses: prefixes("10.1.0.11/24", "10.244.1.9/24"), Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
		DNS: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}
}

func guardedRig(t *testing.T) *rig {
	t.Helper()
	file := filepath.Join(t.TempDir(), "uplink.json")
	r := newRig(t, Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}, UplinkFile: file})
	r.w.hnsID, r.w.uplink, r.file = "id", anUplink(), file
	r.SetNode(nodeWith("10.244.1.0/24"))
	return r
}

func TestUplinkKept(t *testing.T) {
	r := guardedRig(t)
	m, s, clock := r.Manager, r.w, r.clock
	if err := m.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(r.file); err != nil || !strings.Contains(string(kept), "10.1.0.11/24") || strings.Contains(string(kept), "10.244.1.9") {
		t.Errorf("%q is kept, %v", kept, err)
	}
	s.uplink = nil // removed by an administrator: it was still there after the network was created
	clock.Step(time.Hour)
	if err := m.sync(t.Context()); err != nil || s.restored > 0 || len(r.node.events) > 0 {
		t.Errorf("%v, restored %d times, %v", err, s.restored, r.node.reasons())
	}
}

func TestUplinkRestored(t *testing.T) {
	route := anUplink()
	route.Gateways = nil
	for _, left := range []*Uplink{nil, route} {
		r := guardedRig(t)
		m, s, clock := r.Manager, r.w, r.clock
		s.losing, s.left = true, left
		if err := m.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "the host has lost") {
			t.Fatalf("%v", err)
		}
		s.losing, s.restorable = false, true
		clock.Step(settling - 1)
		if err := m.sync(t.Context()); err == nil || s.restored > 0 {
			t.Errorf("too early: %v, %d", err, s.restored)
		}
		clock.Step(1)
		_ = m.sync(t.Context())
		if err := m.sync(t.Context()); err != nil || s.restored != 1 || !slices.Equal(r.node.reasons(), []string{"Normal HostAddressRestored"}) {
			t.Errorf("%v, restored %d times, %v", err, s.restored, r.node.reasons())
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
	r := guardedRig(t)
	m, s, clock := r.Manager, r.w, r.clock
	s.losing = true
	for range restorations + 2 {
		_ = m.sync(t.Context())
		s.losing = false
		clock.Step(settling)
	}
	if err := m.sync(t.Context()); err == nil || len(r.e.networks) > 0 || s.restored != restorations || r.e.made != 1 {
		t.Errorf("%v, networks %v, restored %d times, made %d times", err, r.e.networks, s.restored, r.e.made)
	}
	if !slices.Contains(r.node.reasons(), "Warning "+addressLost) {
		t.Errorf("events %v", r.node.reasons())
	}
	wantErr(t, m, "removed addresses 10.1.0.11/24 from the host, so the network was deleted")
}

// TestUplinkAfterReboot: the file has the host's settings, as long as the kubelet still has that address. Docker has lost the network's labels, as
// before 27.5.
func TestUplinkAfterReboot(t *testing.T) {
	r := guardedRig(t)
	s := r.w
	if err := r.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.e.restart()
	for _, c := range []struct {
		node     netip.Addr
		restored int
	}{{netip.MustParseAddr("10.1.0.99"), 0}, {nodeFour, 1}} {
		r.start(t, Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{c.node}, UplinkFile: r.file})
		r.SetNode(nodeWith("10.244.1.0/24"))
		s.uplink, s.restorable, s.restored = nil, true, 0
		for range 3 {
			_ = r.sync(t.Context())
			r.clock.Step(settling)
		}
		if err := r.sync(t.Context()); err != nil || s.restored != c.restored {
			t.Errorf("node %s: %v, restored %d times, want %d", c.node, err, s.restored, c.restored)
		}
	}
}
