package addresses

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
)

// here is a host under test with what should be local in addition to single addresses.
type here struct {
	*netlinkAddresses
	local relay.Local
}

// ranged returns a namespace whose services have ranges; it skips the test if nftables cannot guard them.
func ranged(t *testing.T, ranges ...string) *here {
	t.Helper()
	nstest.In(t)
	if _, err := command.New().Run(t.Context(), nil, "nft", "--version"); err != nil {
		t.Skipf("needs nft: %v", err)
	}
	return withRanges(t, ranges...)
}

// addressesHere returns the addresses of an interface in the namespace of the test's thread: a Patient runner would
// start programs in other namespaces.
func addressesHere(t *testing.T, name string) *here {
	t.Helper()
	a, err := NewWith(command.New(), name)
	if err != nil {
		t.Fatal(err)
	}
	return &here{netlinkAddresses: a.(*netlinkAddresses)}
}

func withRanges(t *testing.T, ranges ...string) *here {
	t.Helper()
	a := addressesHere(t, "")
	for _, text := range ranges {
		a.local.Ranges = append(a.local.Ranges, netip.MustParsePrefix(text))
	}
	return a
}

// cleanUp removes everything, as --cleanup does.
func cleanUp(t *testing.T) {
	t.Helper()
	if _, err := addressesHere(t, "").Set(t.Context(), relay.Local{}); err != nil {
		t.Fatal(err)
	}
}

// localRoutes lists our routes.
func localRoutes(t *testing.T) string {
	t.Helper()
	have, _, err := (&localRanges{look: true}).list(nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for p, r := range have {
		out = append(out, fmt.Sprintf("%s from %s", p, r.Src))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// hold makes addresses local in addition to the rest of a.local, and reports whether replies to clients come back.
func hold(t *testing.T, a *here, want ...string) (answers bool) {
	t.Helper()
	local := a.local
	local.Addresses = nstest.Addrs(want...)
	answers, err := a.Set(t.Context(), local)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

// TestRanges: a range is one route, addresses outside ranges are single addresses, and each replaces the other when
// ranges change. The next proxy recognizes what this one left.
func TestRanges(t *testing.T) {
	a := ranged(t, "10.96.0.0/12", "fd00:96::/112")
	for range 2 {
		hold(t, a, "10.96.0.1", "10.111.255.1", "fd00:96::1", "198.51.100.1")
		if got := localRoutes(t); got != "10.96.0.0/12 from 192.0.2.1, fd00:96::/112 from fd01::1" {
			t.Fatalf("routes %s", got)
		}
		if got := nstest.Held(t, OwnInterface); got != "198.51.100.1" {
			t.Fatalf("addresses %s", got)
		}
	}
	a = withRanges(t, "10.96.0.0/16") // another proxy
	hold(t, a, "10.96.0.1", "10.111.255.1")
	if routes, single := localRoutes(t), nstest.Held(t, OwnInterface); routes != "10.96.0.0/16 from 192.0.2.1" || single != "10.111.255.1" {
		t.Fatalf("after a change of ranges: routes %s, addresses %s", routes, single)
	}
	a.local.Ranges = nil
	hold(t, a, "10.96.0.1")
	if routes, single := localRoutes(t), nstest.Held(t, OwnInterface); routes != "" || single != "10.96.0.1" {
		t.Fatalf("without ranges: routes %s, addresses %s", routes, single)
	}
	a.local.Ranges = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	hold(t, a, "10.96.0.1")
	cleanUp(t)
	if routes, single := localRoutes(t), nstest.Held(t, OwnInterface); routes != "" || single != "none" {
		t.Fatalf("cleaned up, but there is %s, %s", routes, single)
	}
	if out, err := command.New().Run(t.Context(), nil, "nft", "list", "tables"); err != nil || strings.Contains(string(out), guardTable) {
		t.Fatalf("cleaned up, but there is %s, %v", out, err)
	}
}

// TestRangeOfOthers: if another program's route leads into a range, the rest of the range stays unchanged; an
// unreachable route does not count.
func TestRangeOfOthers(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	eth, err := netlink.LinkByName("eth9")
	if err != nil {
		t.Fatal(err)
	}
	refuse := &netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: ipNet(netip.MustParsePrefix("10.96.0.0/12"))}
	theirs := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: ipNet(netip.MustParsePrefix("10.100.0.0/16"))}
	if err := netlink.RouteAdd(refuse); err != nil {
		t.Fatal(err)
	}
	hints, err := a.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hold(t, a, "10.96.0.1")
	if got := localRoutes(t); got != "10.96.0.0/12 from 192.0.2.1" {
		t.Fatalf("beside a route that refuses: %s", got)
	}
	if err := netlink.RouteAdd(theirs); err != nil {
		t.Fatal(err)
	}
	<-hints
	hold(t, a, "10.96.0.1")
	if routes, single := localRoutes(t), nstest.Held(t, OwnInterface); routes != "" || single != "10.96.0.1" {
		t.Fatalf("beside a route of others: routes %s, addresses %s", routes, single)
	}
	if err := netlink.RouteDel(theirs); err != nil {
		t.Fatal(err)
	}
	<-hints
	hold(t, a, "10.96.0.1")
	ours, _, err := a.routes.list(nil)
	if err != nil || len(ours) != 1 {
		t.Fatal(ours, err)
	}
	for _, r := range ours { // another program removes it
		if err := netlink.RouteDel(&r); err != nil {
			t.Fatal(err)
		}
	}
	for localRoutes(t) == "" {
		<-hints
		hold(t, a, "10.96.0.1")
	}
}

// TestHostsOwnConnections: they come from the node's address.
func TestHostsOwnConnections(t *testing.T) {
	a := ranged(t, "10.96.0.0/12", "fd00:96::/112")
	hold(t, a, "10.96.0.1", "fd00:96::1")
	for front, want := range map[string]string{"10.96.0.1:80": "192.0.2.1", "[fd00:96::1]:80": "fd01::1"} {
		list, err := netlink.RouteGet(netip.MustParseAddrPort(front).Addr().AsSlice())
		if err != nil || list[0].Src.String() != want {
			t.Errorf("to %s: %v, %v; want the source %s", front, list, err, want)
		}
	}
}

// TestNoGuard: without nftables, only the services' addresses are local.
func TestNoGuard(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	a.guard.run = noPrograms{}
	for range 2 {
		hold(t, a, "10.96.0.1")
		if routes, single := localRoutes(t), nstest.Held(t, OwnInterface); routes != "" || single != "10.96.0.1" {
			t.Fatalf("routes %s, addresses %s", routes, single)
		}
	}
}

type noPrograms struct{}

func (noPrograms) Run(context.Context, []byte, string, ...string) ([]byte, error) {
	return nil, command.ErrNotFound
}

func TestGuardChange(t *testing.T) {
	at := func(protocol v1.Protocol, text string) front { return front{protocol, netip.MustParseAddrPort(text)} }
	got := guardChange(&guarded{single: nstest.Addrs("10.0.0.1", "10.0.0.2", "fd00::1"), fronts: []front{at(v1.ProtocolTCP, "203.0.113.9:80")}},
		&guarded{single: nstest.Addrs("10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"), fronts: []front{at(v1.ProtocolUDP, "203.0.113.9:80"), at(v1.ProtocolTCP, "[fd01::9]:80")}, quietSingle: true},
		guardParts{inet: true, arp: true})
	want := `delete element inet winkube-proxy addresses4 { 10.0.0.1 }
delete element arp winkube-proxy addresses4 { 10.0.0.1 }
add element inet winkube-proxy addresses4 { 10.0.0.3 }
add element arp winkube-proxy addresses4 { 10.0.0.3 }
add element inet winkube-proxy addresses6 { fd00::2 }
delete element inet winkube-proxy fronts4 { 203.0.113.9 . tcp . 80 }
add element inet winkube-proxy fronts4 { 203.0.113.9 . udp . 80 }
add element inet winkube-proxy fronts6 { fd01::9 . tcp . 80 }
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
