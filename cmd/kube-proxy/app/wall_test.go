package app

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// goneOnce is an adapter that does not exist until Set creates it.
type goneOnce struct{ *relaytest.Addresses }

func (*goneOnce) Host() ([]netip.Addr, error) { return nil, errors.New("cannot find the interface") }

func TestWallPlaces(t *testing.T) {
	for _, c := range []struct{ ranges, addresses, host, want string }{
		{"", "", "192.0.2.9", ""},
		{"10.96.0.0/12", "", "192.0.2.9", ""}, // no addresses
		{"10.96.0.0/12", "10.96.0.1 10.96.0.10 203.0.113.9", "192.0.2.9", "10.96.0.0/12 203.0.113.9"},
		{"", "10.96.0.1 10.96.0.2 10.96.0.3 10.96.0.9", "192.0.2.9", "10.96.0.1-10.96.0.3 10.96.0.9"},
		{"10.0.0.0/8", "10.96.0.1", "10.1.0.11", "10.96.0.1"}, // the host is in the range: RDP still works at its own address
		{"10.96.0.0/12 fd00:96::/112", "10.96.0.1 fd00:96::a", "192.0.2.9", "10.96.0.0/12 fd00:96::/112"},
	} {
		var want relay.Local
		for text := range strings.FieldsSeq(c.ranges) {
			want.Ranges = append(want.Ranges, netip.MustParsePrefix(text))
		}
		for text := range strings.FieldsSeq(c.addresses) {
			want.Addresses = append(want.Addresses, netip.MustParseAddr(text))
		}
		if got := strings.Join(places(want, []netip.Addr{netip.MustParseAddr(c.host)}), " "); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestWall: rules exist before addresses are added, are written once and are removed with the last address. A firewall
// that accepts none stops nothing.
func TestWall(t *testing.T) {
	gone := newWall(&goneOnce{Addresses: relaytest.NewAddresses()}, nil)
	gone.script = func(context.Context, []string) (string, error) { return "", errors.New("no firewall") }
	if _, err := gone.Set(t.Context(), relay.Local{}); err != nil {
		t.Errorf("an adapter that is gone is made again by Set: %v", err)
	}
	held := relaytest.NewAddresses(netip.MustParseAddr("192.0.2.9"))
	rules, runs, broken := []string{}, 0, false
	w := newWall(held, nil)
	w.script = func(_ context.Context, lines []string) (string, error) {
		if runs++; broken {
			return "", errors.New("the service mpssvc is stopped")
		}
		if held.String() != "" && len(lines) == 2 {
			t.Errorf("%s is still held when the rules go", held)
		}
		if held.String() != "" && len(rules) == 0 && runs == 1 {
			t.Errorf("%s is held before there are rules", held)
		}
		rules = lines[1 : len(lines)-1]
		return strings.Join(rules, "\n"), nil
	}
	set := func(want relay.Local) {
		t.Helper()
		if _, err := w.Set(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	one := relay.Local{Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	set(one)
	set(one)
	if runs != 1 || len(rules) != len(servers) || !slices.Contains(rules, `advfirewall firewall add rule name="winkube service addresses" dir=in action=block program="System" localip=10.96.0.1`) {
		t.Errorf("after %d runs: %q", runs, rules)
	}
	set(relay.Local{})
	if len(rules) > 0 || held.String() != "" {
		t.Errorf("left: %q, %s", rules, held)
	}
	broken = true
	set(one)
	if held.String() != "10.96.0.1" {
		t.Errorf("without a firewall the host holds %q", held)
	}
	broken = false
	set(one)
	if len(rules) != len(servers) {
		t.Errorf("the firewall is back: %q", rules)
	}
}
