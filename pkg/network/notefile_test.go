package network

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestNoteFile(t *testing.T) {
	f := noteFile(filepath.Join(t.TempDir(), "kubelet", "uplink.json"))
	for range 2 { // written again, removed again
		if u, err := f.read(); u != nil || err != nil {
			t.Errorf("nothing is kept: %+v, %v", u, err)
		}
		for range 2 {
			if err := f.write(*anUplink()); err != nil {
				t.Fatal(err)
			}
		}
		if u, err := f.read(); err != nil || !reflect.DeepEqual(u, anUplink()) {
			t.Errorf("%+v, %v", u, err)
		}
		if err := f.remove(); err != nil {
			t.Error(err)
		}
	}
	if err := f.remove(); err != nil {
		t.Errorf("gone already: %v", err)
	}
	if err := os.WriteFile(string(f), []byte("Ethernet"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.read(); err == nil || !strings.Contains(err.Error(), string(f)) || !strings.Contains(err.Error(), "remove it once") {
		t.Errorf("a file of others: %v", err)
	}
	if err := noteFile(filepath.Join(string(f), "uplink.json")).write(Uplink{}); err == nil {
		t.Error("below a file")
	}
}

// TestSpoiltNote: a network is not made, and nothing is restored, while it cannot be known what the host had.
func TestSpoiltNote(t *testing.T) {
	file := filepath.Join(t.TempDir(), "uplink.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{Mode: HostGateway, Platform: onServer2019, NodeIPs: []netip.Addr{nodeFour}, UplinkFile: file})
	r.SetNode(nodeWith("10.244.1.0/24"))
	if err := r.sync(t.Context()); err == nil || !strings.Contains(err.Error(), file) || len(r.w.bridges) > 0 {
		t.Errorf("%v, %v", err, r.w.bridges)
	}
}

// TestUplinkOfOwnBridge: a kubelet that was killed after the network cost the host its address finds what it had in the file, and gives it back.
func TestUplinkOfOwnBridge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "uplink.json")
	cfg := Config{Mode: HostGateway, Platform: onServer2019, NodeIPs: []netip.Addr{nodeFour}, UplinkFile: file}
	r := newRig(t, cfg)
	r.w.uplink, r.w.losing = anUplink(), true // Windows loses it with the switch
	r.SetNode(nodeWith("10.244.1.0/24"))
	if err := r.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "the host has lost") {
		t.Fatal(err)
	}
	r.w.losing, r.w.restorable = false, true
	r.start(t, cfg)
	r.SetNode(nodeWith("10.244.1.0/24"))
	for range 2 {
		_ = r.sync(t.Context())
		r.clock.Step(settling)
	}
	if err := r.sync(t.Context()); err != nil || r.w.restored != 1 || r.w.uplink == nil {
		t.Errorf("%v, restored %d times: %+v", err, r.w.restored, r.w.uplink)
	}
}
