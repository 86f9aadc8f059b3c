package addresses

import (
	"net/netip"
	"testing"
)

// TestHostModel: replies from service addresses leave through other interfaces, a second call changes nothing, and the
// previous settings are restored.
func TestHostModel(t *testing.T) {
	all := HostModel{Forwarding: true, WeakSend: true, WeakReceive: true}
	for _, before := range []HostModel{{}, {Forwarding: true}} {
		serving := before.Serving()
		if !serving.Forwarding || !serving.WeakSend {
			t.Errorf("%+v serves with %+v", before, serving)
		}
		if again := serving.Serving(); again != serving {
			t.Errorf("%+v changes to %+v", serving, again)
		}
		if after := serving.Before(true); after != before {
			t.Errorf("%+v comes back as %+v", before, after)
		}
	}
	if got := all.Before(false); got != (HostModel{}) {
		t.Errorf("the addresses are gone since a reboot, our settings stay: %+v", got)
	}
	for _, others := range []HostModel{{}, {Forwarding: true}, {WeakSend: true}, {WeakReceive: true}, {Forwarding: true, WeakSend: true}} {
		if got := others.Before(false); got != others {
			t.Errorf("settings of others, without an address of ours: %+v become %+v", others, got)
		}
	}
}

// TestHostModelFamilies: each family is set separately, and restored when its last address is removed.
func TestHostModelFamilies(t *testing.T) {
	want := []netip.Addr{netip.MustParseAddr("10.96.0.1")}
	ours := map[netip.Addr]bool{want[0]: true, netip.MustParseAddr("fe80::1"): false}
	if got := (HostModel{}).next(nil, want, false); !got.WeakSend || !got.Forwarding {
		t.Errorf("IPv4 has an address: %+v", got)
	}
	if got := (HostModel{}).next(nil, want, true); got != (HostModel{}) {
		t.Errorf("IPv6 has none: %+v", got)
	}
	before := HostModel{Forwarding: true}
	if got := before.Serving().next(ours, nil, false); got != before {
		t.Errorf("IPv4 had an address of ours: %+v, want %+v", got, before)
	}
	others := HostModel{Forwarding: true, WeakSend: true}
	if got := others.next(ours, nil, true); got != others {
		t.Errorf("IPv6 never had one: %+v, want %+v", got, others)
	}
}
