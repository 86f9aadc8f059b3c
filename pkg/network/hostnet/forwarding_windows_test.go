package hostnet

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/winkube/winkube/pkg/network"
)

// TestForwardingNoted: forwarding that was off is recorded before it is enabled, and off again after Undo; an administrator's stays on.
func TestForwardingNoted(t *testing.T) {
	needIPHelper(t)
	link := adapter(t)
	own := netip.MustParsePrefix("10.79.0.5/24")
	if err := link.InterfaceLUID.AddIPAddress(own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.InterfaceLUID.DeleteIPAddress(own); err != nil {
			t.Error(err)
		}
	})
	forwards := func() bool {
		row, err := link.InterfaceLUID.IPInterface(windows.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		return row.ForwardingEnabled
	}
	note, here := network.ForwardingFileIn(t.TempDir()), network.Forwarding{Interface: link.Alias()}
	state := network.State{Gateways: []network.Gateway{{Interface: link.Alias(), Address: own}}, Forward: []netip.Addr{own.Addr()}}
	if _, err := StopForwarding(here); err != nil || forwards() {
		t.Fatalf("cannot begin without: %v", err)
	}
	for range 2 {
		if err := Noting(note).Apply(t.Context(), state); err != nil || !forwards() {
			t.Fatalf("forwards: %t, %v", forwards(), err)
		}
	}
	if list, err := note.Read(); err != nil || !slices.Equal(list, []network.Forwarding{here}) {
		t.Errorf("noted %+v, %v", list, err)
	}
	if changed, err := note.Undo(StopForwarding); err != nil || !slices.Equal(changed, []string{link.Alias()}) || forwards() {
		t.Errorf("%q, %v; forwards: %t", changed, err, forwards())
	}
	if err := forward(link.InterfaceLUID, false, func() error { return nil }); err != nil { // the administrator
		t.Fatal(err)
	}
	if err := Noting(note).Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	if changed, err := note.Undo(StopForwarding); err != nil || len(changed) > 0 || !forwards() {
		t.Errorf("an administrator's: %q, %v; forwards: %t", changed, err, forwards())
	}
	if was, err := StopForwarding(network.Forwarding{Interface: "gone"}); was || err != nil {
		t.Errorf("an adapter that is gone: %t, %v", was, err)
	}
	t.Run("refused", func(t *testing.T) {
		refuse(t, "SetIpInterfaceEntry")
		if _, err := StopForwarding(here); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			t.Errorf("%v", err)
		}
	})
	t.Run("cannot note", func(t *testing.T) {
		if _, err := StopForwarding(here); err != nil {
			t.Fatal(err)
		}
		below := network.ForwardingFile(filepath.Join(t.TempDir(), "\x00", "forwarding.json"))
		if err := Noting(below).Apply(t.Context(), network.State{Gateways: state.Gateways[:1], Forward: state.Forward}); err == nil {
			t.Error("what cannot be noted is no error")
		}
	})
}
