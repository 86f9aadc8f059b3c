package addresses

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
)

// TestPortTakenAway: the removal of a rule or a route is noticed, and the next Set restores it; our own removals cause
// no hint.
func TestPortTakenAway(t *testing.T) {
	nstest.NewNeighbours(t)
	a := withRanges(t)
	hints, err := a.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var fronts []relay.Port
	for _, text := range []string{nstest.Taken4 + ":80", "[" + nstest.Taken6 + "]:80"} {
		fronts = append(fronts, relay.Port{Protocol: v1.ProtocolTCP, Addr: netip.MustParseAddrPort(text)})
	}
	a.local.Ports = append(slices.Clone(fronts), relay.Port{Protocol: v1.ProtocolUDP, Addr: fronts[0].Addr})
	hold(t, a)
	a.local.Ports = fronts
	hold(t, a)
	there := nstest.PortTraces(t)
	for _, taken := range []string{"-4 rule del priority 122", "-6 rule del priority 122", "-4 route flush table 1190600080", "-6 route flush table 1190600080"} {
		nstest.Drain(t, hints)
		if _, err := command.New().Run(t.Context(), nil, "ip", strings.Fields(taken)...); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
		case <-time.After(time.Minute):
			t.Errorf("%s: no hint", taken)
		}
		hold(t, a)
		if got := nstest.PortTraces(t); got != there {
			t.Errorf("after %s: %s; want %s", taken, got, there)
		}
	}
	if p := a.ports; p.takenRoute(&netlink.Route{Table: 1191700080, Protocol: ownProtocol, Dst: ipNet(netip.MustParsePrefix(nstest.Taken4 + "/32"))}) {
		t.Error("what we have let go of counts as taken away")
	}
}

// TestStaleSource: a source address that the host no longer has is replaced.
func TestStaleSource(t *testing.T) {
	nstest.NewNeighbours(t)
	a := withRanges(t)
	a.local.Ports = []relay.Port{{Protocol: v1.ProtocolTCP, Addr: netip.MustParseAddrPort(nstest.Taken4 + ":80")}}
	hold(t, a)
	if got := nstest.PortTraces(t); !strings.Contains(got, "from 192.0.2.1") {
		t.Fatal(got)
	}
	if err := nstest.IP("addr add 192.0.2.77/24 dev eth0\naddr del 192.0.2.1/24 dev eth0\naddr replace 192.0.2.77/24 dev eth0"); err != nil {
		t.Fatal(err)
	}
	hold(t, a)
	if got := nstest.PortTraces(t); !strings.Contains(got, "from 192.0.2.77") {
		t.Error(got)
	}
}

// TestPolicy: one rule for each port whatever the number of addresses, and with more than a few ports two more that
// other traffic uses to skip them.
func TestPolicy(t *testing.T) {
	text := func(fronts ...front) string {
		rules, routes := policy(fronts)
		var out []string
		for _, r := range slices.SortedFunc(maps.Keys(rules), comparePolicy) {
			out = append(out, fmt.Sprintf("%d port %d to %v table %d goto %d", r.priority, r.port, r.to, r.table, r.jump))
		}
		return fmt.Sprintf("%s; %d routes", strings.Join(out, ", "), len(routes))
	}
	var same, many []front
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{203, 0, byte(113 + i%2), byte(i / 4)})
		same = append(same, front{v1.ProtocolTCP, netip.AddrPortFrom(addr, 80)})
	}
	if got := text(same...); got != "122 port 80 to invalid Prefix table 1190600080 goto 0; 500 routes" {
		t.Error(got)
	}
	for i := range fewPorts + 1 {
		many = append(many, front{v1.ProtocolUDP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), uint16(5000+i))})
	}
	if got := text(many[:fewPorts]...); strings.Contains(got, "goto 1") {
		t.Errorf("a few ports: %s", got)
	}
	got := text(many...)
	for _, want := range []string{"123 port 0 to invalid Prefix table 0 goto 0, 122 port 5000", "120 port 0 to 203.0.113.16/32 table 0 goto 122", "121 port 0 to invalid Prefix table 0 goto 123; 17 routes"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
}

// FuzzCovers: all addresses are covered by a few prefixes that do not overlap; with few addresses, nothing else is
// covered.
func FuzzCovers(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1, 192, 0, 2, 200, 203, 0, 113, 9}, false)
	f.Add([]byte{1, 2, 3, 4, 129, 2, 3, 4, 1, 2, 3, 5, 10, 0, 0, 1, 10, 0, 0, 2, 77, 1, 1, 1}, false)
	f.Add(make([]byte, 64), true)
	f.Fuzz(func(t *testing.T, data []byte, six bool) {
		size := 4
		if six {
			size = 16
		}
		var addrs []netip.Addr
		for ; len(data) >= size && len(addrs) < 200; data = data[size:] {
			addr, _ := netip.AddrFromSlice(data[:size])
			addrs = append(addrs, addr)
		}
		if len(addrs) == 0 {
			return
		}
		got := covers(slices.Clone(addrs))
		if got == nil {
			return // everything
		}
		if len(got) > maxCovers {
			t.Fatalf("%v: more than %d", got, maxCovers)
		}
		for i, p := range got {
			if p != p.Masked() || p.Bits() == 0 || slices.ContainsFunc(got[:i], p.Overlaps) {
				t.Fatalf("%v for %v", got, addrs)
			}
		}
		for _, addr := range addrs {
			if !inRange(got, addr) {
				t.Fatalf("%s is not in %v", addr, got)
			}
		}
	})
}

// TestOldKernel: without support for rules with ports, the whole address becomes local, and HoldsPorts reports that for
// the next Sync.
func TestOldKernel(t *testing.T) {
	nstest.NewNeighbours(t)
	a := withRanges(t)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		a.ports.probed[family], a.ports.no[family] = true, "it is old"
	}
	for _, addr := range []string{nstest.Taken4, nstest.Taken6} {
		a.local.Ports = append(a.local.Ports, relay.Port{Protocol: v1.ProtocolTCP, Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 80)})
	}
	hold(t, a)
	if got := nstest.Held(t, OwnInterface); got != "192.0.2.9 fd01::9" || nstest.PortTraces(t) != "" || a.HoldsPorts(netip.MustParseAddr(nstest.Taken4)) {
		t.Errorf("addresses %s, rules %s", got, nstest.PortTraces(t))
	}
}
