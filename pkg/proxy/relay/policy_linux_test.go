package relay

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy"
)

// TestOnlyThePort: an external address gives its front's port to the proxy, and everything else of it stays where it was: for this host, for pods that
// it forwards for, for other hosts; no host is told that it is here.
func TestOnlyThePort(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func() *loops) {
		n := newNeighbours(t)
		endpoint := speaking(t)
		a := withRanges(t, "10.96.0.0/12")
		mine, theirs := n.mac(t, n.own), n.mac(t, n.owner)
		r := n.here(t, newPlane(), a)
		clusterIP := route("cluster", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.1:80"), endpoint)
		mustServe(t, r, append(frontRoutes(endpoint), clusterIP)...)
		fronts := []string{taken4 + ":80", "[" + taken6 + "]:80"}
		others := []string{taken4 + ":7", "[" + taken6 + "]:7"}
		check := func(when string) {
			t.Helper()
			for _, network := range []string{"tcp", "udp"} {
				for i := range fronts {
					n.meets(t, when+": this host", n.own, network, fronts[i], "relay")
					n.meets(t, when+": this host", n.own, network, others[i], "owner")
					n.meets(t, when+": a pod", n.pod, network, fronts[i], "relay")
					n.meets(t, when+": a pod", n.pod, network, others[i], "owner")
					n.meets(t, when+": a host to which the address is here", n.client, network, fronts[i], "relay")
					n.meets(t, when+": a host to which the address is here", n.client, network, others[i], "owner")
				}
			}
		}
		// The client asks the network where the addresses are.
		for _, network := range []string{"tcp", "udp"} {
			n.meets(t, "the client", n.client, network, fronts[0], "owner")
			n.meets(t, "the client", n.client, network, fronts[1], "owner")
		}
		for _, addr := range []string{taken4, taken6} {
			if got := n.hardware(t, addr); got != theirs {
				t.Errorf("the client has %s for %s, want the owner's %s", got, addr, theirs)
			}
		}
		for _, addr := range []string{vacant4, "10.96.0.1"} { // no host has it, so only this one could answer
			n.meets(t, "the client", n.client, "tcp", addr+":80", "dial tcp "+addr+":80: connect: no route to host")
			if got := n.hardware(t, addr); got != "" {
				t.Errorf("%s answers ARP for %s (this host is %s)", got, addr, mine)
			}
		}
		n.balanced(t)
		check("served")
		n.meets(t, "the client", n.client, "tcp", vacant4+":80", "relay")
		if got := held(t, OwnInterface); got != "none" {
			t.Errorf("addresses %s are on this host", got)
		}
		left := heldTraces(t)
		if !strings.Contains(left, "122 ipproto tcp dport 80 lookup 1190600080") {
			t.Errorf("rules and routes: %s", left)
		}
		// A proxy that is killed leaves them, and the next one goes on with them.
		n.stop()
		if got := heldTraces(t); got != left {
			t.Errorf("left is %s; want %s", got, left)
		}
		for _, space := range []netns.NsHandle{n.own, n.pod, n.client} {
			n.meets(t, "while no proxy runs", space, "tcp", fronts[0], "refused")
		}
		a = withRanges(t, "10.96.0.0/12")
		r = n.here(t, newPlane(), a)
		mustServe(t, r, append(frontRoutes(endpoint), clusterIP)...)
		if got := heldTraces(t); got != left {
			t.Errorf("the next proxy made of it %s; want %s", got, left)
		}
		check("after a restart")
		mustServe(t, r, clusterIP)
		if got := heldTraces(t); got != "" {
			t.Errorf("without fronts there is %s", got)
		}
		n.meets(t, "without the Service, this host", n.own, "tcp", fronts[0], "owner")
		mustServe(t, r, frontRoutes(endpoint)...)
		if err := withRanges(t).Set(t.Context(), nil); err != nil { // as --cleanup does
			t.Fatal(err)
		}
		tables, err := command.New().Run(t.Context(), nil, "nft", "list", "tables")
		if got := heldTraces(t); got != "" || err != nil || len(tables) > 0 || answerTraces(t) != "0 rules, 0 routes" {
			t.Errorf("cleaned up, but there is %s %s %s, %v", got, tables, answerTraces(t), err)
		}
	})
}

// heldTraces are the rules and routes that hold ports.
func heldTraces(t *testing.T) string {
	t.Helper()
	rules, err := listRules()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for r := range rules {
		text := fmt.Sprintf("%d:%d", map[int]int{netlink.FAMILY_V4: 4, netlink.FAMILY_V6: 6}[r.family], r.priority)
		if r.protocol != 0 {
			text += fmt.Sprintf(" ipproto %s dport %d", map[int]string{6: "tcp", 17: "udp"}[r.protocol], r.port)
		}
		if r.to.IsValid() {
			text += " to " + r.to.String()
		}
		if r.table != 0 {
			text += fmt.Sprintf(" lookup %d", r.table)
		}
		if r.jump != 0 {
			text += fmt.Sprintf(" goto %d", r.jump)
		}
		out = append(out, text)
	}
	routes, err := listHeld()
	if err != nil {
		t.Fatal(err)
	}
	for h, r := range routes {
		out = append(out, fmt.Sprintf("%s in %d from %s", h.addr, h.table, r.Src))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestRefusedPort: a front without endpoints refuses, although its address is not local.
func TestRefusedPort(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func() *loops) {
		n := newNeighbours(t)
		n.balanced(t)
		endpoint := speaking(t)
		other := program(t, "tcp4", "0.0.0.0:80") // which is not to answer in the front's place
		r := n.here(t, newPlane(), withRanges(t))
		mustServe(t, r, frontRoutes()...)
		for name, space := range map[string]netns.NsHandle{"this host": n.own, "a pod": n.pod, "the client": n.client} {
			for _, network := range []string{"tcp", "udp"} {
				n.meets(t, name, space, network, taken4+":80", "refused")
				n.meets(t, name, space, network, "["+taken6+"]:80", "refused")
			}
		}
		_ = other.Close()
		mustServe(t, r, frontRoutes(endpoint)...)
		n.meets(t, "served, a pod", n.pod, "tcp", taken4+":80", "relay")
		n.meets(t, "served, a pod", n.pod, "udp", taken4+":80", "relay")
	})
}

// TestPortTakenAway: a rule or a route that somebody takes away is seen, and the next Set brings it back; what we take away ourselves is no news.
func TestPortTakenAway(t *testing.T) {
	newNeighbours(t)
	a := withRanges(t)
	hints, err := a.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var fronts []Front
	for _, text := range []string{taken4 + ":80", "[" + taken6 + "]:80"} {
		fronts = append(fronts, Front{v1.ProtocolTCP, netip.MustParseAddrPort(text)})
	}
	a.HoldPorts(append(slices.Clone(fronts), Front{v1.ProtocolUDP, fronts[0].Addr}))
	set4(t, a)
	a.HoldPorts(fronts)
	set4(t, a)
	there := heldTraces(t)
	for _, taken := range []string{"-4 rule del priority 122", "-6 rule del priority 122", "-4 route flush table 1190600080", "-6 route flush table 1190600080"} {
		drain(t, hints)
		if _, err := command.New().Run(t.Context(), nil, "ip", strings.Fields(taken)...); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: no hint", taken)
		}
		set4(t, a)
		if got := heldTraces(t); got != there {
			t.Errorf("after %s: %s; want %s", taken, got, there)
		}
	}
	if p := a.ports; p.takenRoute(&netlink.Route{Table: 1191700080, Protocol: ownProtocol, Dst: ipNet(netip.MustParsePrefix(taken4 + "/32"))}) {
		t.Error("what we have let go of counts as taken away")
	}
}

// drain takes the hints of what has been done so far.
func drain(t *testing.T, hints <-chan struct{}) {
	t.Helper()
	for quiet := false; !quiet; {
		select {
		case <-hints:
		case <-time.After(200 * time.Millisecond):
			quiet = true
		}
	}
}

// TestStaleSource: a source that the host has no more is replaced.
func TestStaleSource(t *testing.T) {
	newNeighbours(t)
	a := withRanges(t)
	a.HoldPorts([]Front{{v1.ProtocolTCP, netip.MustParseAddrPort(taken4 + ":80")}})
	set4(t, a)
	if got := heldTraces(t); !strings.Contains(got, "from 192.0.2.1") {
		t.Fatal(got)
	}
	if err := run("addr add 192.0.2.77/24 dev eth0\naddr del 192.0.2.1/24 dev eth0\naddr replace 192.0.2.77/24 dev eth0"); err != nil {
		t.Fatal(err)
	}
	set4(t, a)
	if got := heldTraces(t); !strings.Contains(got, "from 192.0.2.77") {
		t.Error(got)
	}
}

// TestWholeAddress: a kernel without rules for ports has the address as a whole, but does not say so to the network.
func TestWholeAddress(t *testing.T) {
	n := newNeighbours(t)
	endpoint := speaking(t)
	a := withRanges(t)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		a.ports.probed[family], a.ports.no[family] = true, "it is old"
	}
	r := n.here(t, &loops{}, a)
	mustServe(t, r, frontRoutes(endpoint)...)
	if got := held(t, OwnInterface); got != "192.0.2.10 192.0.2.9 fd01::9" || heldTraces(t) != "" {
		t.Fatalf("addresses %s, rules %s", got, heldTraces(t))
	}
	n.meets(t, "the client", n.client, "tcp", vacant4+":80", "dial tcp "+vacant4+":80: connect: no route to host")
	n.meets(t, "the client", n.client, "tcp", taken4+":80", "owner")
	n.balanced(t)
	for _, addr := range []string{taken4 + ":80", vacant4 + ":80", "[" + taken6 + "]:80"} {
		n.meets(t, "the client", n.client, "tcp", addr, "relay")
		n.meets(t, "the client", n.client, "udp", addr, "relay")
	}
}

// TestPathTooNarrow: a router between the client and this host says that packets are too large, to an address that is not here; what follows is smaller.
func TestPathTooNarrow(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func() *loops) {
		n := newNeighbours(t)
		const size = 200_000
		endpoint := tcpServer(t, func(c *net.TCPConn) { _, _ = c.Write(make([]byte, size)) })
		r := n.here(t, newPlane(), withRanges(t))
		// The owner is the router: beyond it, on a link with smaller packets, is the pod's namespace as a client that does not know.
		within(t, n.owner, func() error {
			return run("link add far0 type veth peer name far1\nlink set far0 mtu 1300 up\naddr add 10.8.0.1/24 dev far0\naddr add fd08::1/64 dev far0 nodad")
		})
		var far netlink.Link
		within(t, n.owner, func() (err error) {
			if far, err = netlink.LinkByName("far1"); err == nil {
				err = netlink.LinkSetNsFd(far, int(n.pod))
			}
			return err
		})
		within(t, n.pod, func() error {
			return run("link set pod1 down\nlink set far1 up\naddr add 10.8.0.2/24 dev far1\naddr add fd08::2/64 dev far1 nodad\nroute add default via 10.8.0.1\nroute add default via fd08::1")
		})
		if err := run("route add 10.8.0.0/24 via 192.0.2.3\nroute add fd08::/64 via fd01::3"); err != nil {
			t.Fatal(err)
		}
		mine := n.mac(t, n.own)
		within(t, n.owner, func() error { // it has sent the addresses away, and knows where they are now
			return run("addr del 192.0.2.9/32 dev eth0\naddr del fd01::9/128 dev eth0\nneigh replace 192.0.2.9 lladdr " + mine + " dev eth0 nud permanent\nneigh replace fd01::9 lladdr " + mine + " dev eth0 nud permanent")
		})
		mustServe(t, r, frontRoutes(endpoint)...)
		for _, addr := range []string{taken4 + ":80", "[" + taken6 + "]:80"} {
			within(t, n.pod, func() error {
				c, err := net.DialTimeout("tcp", addr, 5*time.Second)
				if err != nil {
					return err
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				if got, err := io.Copy(io.Discard, c); err != nil || got != size {
					return fmt.Errorf("from %s came %d of %d bytes: %w", addr, got, size, err)
				}
				return nil
			})
		}
	})
}

// TestPolicy: one rule for each port whatever the number of addresses, and above a few ports two more by which the rest of the world passes them by.
func TestPolicy(t *testing.T) {
	text := func(fronts ...Front) string {
		rules, routes := policy(fronts)
		var out []string
		for _, r := range slices.SortedFunc(maps.Keys(rules), comparePolicy) {
			out = append(out, fmt.Sprintf("%d port %d to %v table %d goto %d", r.priority, r.port, r.to, r.table, r.jump))
		}
		return fmt.Sprintf("%s; %d routes", strings.Join(out, ", "), len(routes))
	}
	var same, many []Front
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{203, 0, byte(113 + i%2), byte(i / 4)})
		same = append(same, Front{v1.ProtocolTCP, netip.AddrPortFrom(addr, 80)})
	}
	if got := text(same...); got != "122 port 80 to invalid Prefix table 1190600080 goto 0; 500 routes" {
		t.Error(got)
	}
	for i := range fewPorts + 1 {
		many = append(many, Front{v1.ProtocolUDP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), uint16(5000+i))})
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

// FuzzCovers: all addresses are covered, by a few prefixes that do not overlap, and nothing is covered without need where the addresses are few.
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

// TestManyPorts: above a few ports the rules have steps by which other traffic passes them by; what they hold is served all the same, and the steps go again.
func TestManyPorts(t *testing.T) {
	n := newNeighbours(t)
	n.meets(t, "the client", n.client, "tcp", "["+taken6+"]:7", "owner") // which knows the client then: it could not ask for it afterwards
	n.balanced(t)
	endpoint := speaking(t)
	r := n.here(t, &loops{}, withRanges(t))
	routes := frontRoutes(endpoint)
	few := len(routes)
	for i := range fewPorts {
		for _, addr := range []string{taken4, taken6} {
			routes = append(routes, route(fmt.Sprintf("x%s-%d", addr, i), proxy.ExternalIP, v1.ProtocolTCP, netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(5000+i)), endpoint))
		}
	}
	steps := func() int { return strings.Count(heldTraces(t), "goto") + strings.Count(heldTraces(t), ":123") }
	mustServe(t, r, routes...)
	if got := steps(); got != 7 { // two prefixes of IPv4, one of IPv6, and skip and end of each
		t.Errorf("%d steps: %s", got, heldTraces(t))
	}
	check := func() {
		t.Helper()
		for name, space := range map[string]netns.NsHandle{"this host": n.own, "a pod": n.pod, "the client": n.client} {
			for _, addr := range []string{taken4, "[" + taken6 + "]"} {
				n.meets(t, name, space, "tcp", addr+":80", "relay")
				n.meets(t, name, space, "udp", addr+":80", "relay")
				n.meets(t, name, space, "tcp", addr+":7", "owner")
			}
		}
	}
	check()
	for _, addr := range []string{taken4, "[" + taken6 + "]"} {
		n.meets(t, "the client", n.client, "tcp", addr+":5015", "relay")
	}
	mustServe(t, r, routes[:few]...)
	if got := steps(); got != 0 {
		t.Errorf("%d steps are left: %s", got, heldTraces(t))
	}
	check()
}
