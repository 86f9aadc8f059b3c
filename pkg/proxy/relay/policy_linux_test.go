package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy"
)

// Fronts whose address another host of the network has, and at .10 one that nobody has.
const (
	taken4, taken6 = "192.0.2.9", "fd01::9"
	vacant4        = "192.0.2.10"
)

// neighbours are hosts of one network: the test's own, a client, the owner of taken4 and taken6; and a pod behind the test's host. Each is a network namespace.
type neighbours struct {
	own, client, owner, pod netns.NsHandle
	outside                 netns.NsHandle // where the test began
	stop                    func()         // ends the relay
}

// within runs do in a namespace, by a thread that ends with it.
func within(t *testing.T, space netns.NsHandle, do func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is not used again
		err := netns.Set(space)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// run runs lines of ip.
func run(lines string) error {
	_, err := command.New().Run(context.Background(), []byte(lines), "ip", "-batch", "-")
	return err
}

func setting(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644) // of the thread's namespace
}

func newNeighbours(t *testing.T) *neighbours {
	t.Helper()
	n := &neighbours{}
	var err error
	if n.outside, err = netns.Get(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.outside.Close() })
	inNamespace(t)
	for _, program := range []string{"nft", "ip"} {
		if _, err := command.New().Run(t.Context(), nil, program, "-V"); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	var wire netns.NsHandle
	if n.own, err = netns.Get(); err != nil {
		t.Fatal(err)
	}
	for _, space := range []*netns.NsHandle{&wire, &n.client, &n.owner, &n.pod} {
		if *space, err = netns.New(); err == nil {
			err = netns.Set(n.own)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = space.Close() })
	}
	within(t, wire, func() error {
		if err := run("link add br0 type bridge\nlink set br0 up"); err != nil {
			return err
		}
		for i, space := range []netns.NsHandle{n.own, n.client, n.owner} {
			name := fmt.Sprintf("port%d", i)
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(space)}); err != nil {
				return err
			}
			if err := run("link set " + name + " master br0\nlink set " + name + " up"); err != nil {
				return err
			}
		}
		return nil
	})
	hosts := []struct {
		space netns.NsHandle
		lines string
	}{
		{n.own, "link del eth9\nlink set eth0 up\naddr add 192.0.2.1/24 dev eth0\naddr add fd01::1/64 dev eth0 nodad\nlink add pod0 type veth peer name pod1\n" +
			"link set pod0 up\naddr add 10.9.0.1/24 dev pod0\naddr add fd09::1/64 dev pod0 nodad"},
		{n.client, "link set lo up\nlink set eth0 up\naddr add 192.0.2.2/24 dev eth0\naddr add fd01::2/64 dev eth0 nodad\nroute add 10.9.0.0/24 via 192.0.2.1\nroute add 10.96.0.0/12 dev eth0"},
		{n.owner, "link set lo up\nlink set eth0 up\naddr add 192.0.2.3/24 dev eth0\naddr add 192.0.2.9/32 dev eth0\naddr add fd01::3/64 dev eth0 nodad\naddr add fd01::9/128 dev eth0 nodad\n" +
			"route add 10.9.0.0/24 via 192.0.2.1\nroute add fd09::/64 via fd01::1"},
	}
	for _, h := range hosts {
		within(t, h.space, func() error {
			return errors.Join(setting("ipv4/conf/all/rp_filter", "1"), setting("ipv4/ip_forward", "1"), setting("ipv6/conf/all/forwarding", "1"),
				setting("ipv6/conf/all/accept_dad", "0"), setting("ipv6/conf/eth0/accept_dad", "0"), run(h.lines),
				setting("ipv4/neigh/eth0/mcast_solicit", "1"), setting("ipv4/neigh/eth0/retrans_time_ms", "100"))
		})
	}
	link, err := netlink.LinkByName("pod1")
	if err == nil {
		err = netlink.LinkSetNsFd(link, int(n.pod))
	}
	if err != nil {
		t.Fatal(err)
	}
	within(t, n.pod, func() error {
		return run("link set lo up\nlink set pod1 up\naddr add 10.9.0.2/24 dev pod1\naddr add fd09::2/64 dev pod1 nodad\nroute add default via 10.9.0.1\nroute add default via fd09::1")
	})
	within(t, n.owner, func() error {
		for _, port := range []string{"80", "7"} {
			speak(t, "owner", "0.0.0.0:"+port, "[::]:"+port)
		}
		return nil
	})
	return n
}

// speak says a word at addresses, by TCP and UDP.
func speak(t *testing.T, word string, addrs ...string) {
	for _, addr := range addrs {
		family := map[bool]string{true: "6", false: "4"}[addr[0] == '[']
		l, err := net.Listen("tcp"+family, addr)
		if err != nil {
			t.Error(err)
			return
		}
		at := net.UDPAddrFromAddrPort(l.Addr().(*net.TCPAddr).AddrPort())
		p, err := net.ListenUDP("udp"+family, at)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { l.Close(); p.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(word))
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c) // what is unread would make a reset of the end
				_ = c.Close()
			}
		}()
		go func() {
			// The answer comes from the address that was asked: packet information says which.
			for buffer, control := make([]byte, 64), make([]byte, 256); ; {
				_, n, _, from, err := p.ReadMsgUDP(buffer, control)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				_, _, _ = p.WriteMsgUDP([]byte(word), control[:n], from)
			}
		}()
		raw, err := p.SyscallConn()
		if err == nil {
			err = control(func(fd uintptr) error {
				if family == "4" {
					return unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
				}
				return unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
			})("", "", raw)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// meets asks at an address from a namespace and compares what it hears.
func (n *neighbours) meets(t *testing.T, who string, space netns.NsHandle, network, addr, want string) {
	t.Helper()
	got := ""
	within(t, space, func() error {
		got = answers(t, network, netip.MustParseAddrPort(addr))
		return nil
	})
	if got != want {
		t.Errorf("%s at %s %s meets %q, want %q", who, network, addr, got, want)
	}
}

// hardware is what the client's neighbour table has for an address, "" after nobody answered.
func (n *neighbours) hardware(t *testing.T, addr string) (mac string) {
	t.Helper()
	within(t, n.client, func() error {
		list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, one := range list {
			if one.IP.String() == addr && one.State&netlink.NUD_FAILED == 0 {
				mac = one.HardwareAddr.String()
			}
		}
		return err
	})
	return mac
}

func (n *neighbours) mac(t *testing.T, space netns.NsHandle) (mac string) {
	t.Helper()
	within(t, space, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mac = link.Attrs().HardwareAddr.String()
		}
		return err
	})
	return mac
}

// balanced has the client send what is for the fronts to the test's host, as it does where a load balancer has said that it is there.
func (n *neighbours) balanced(t *testing.T) {
	t.Helper()
	mac := n.mac(t, n.own)
	within(t, n.client, func() error {
		var lines []string
		for _, addr := range []string{taken4, taken6, vacant4} {
			lines = append(lines, fmt.Sprintf("neigh replace %s lladdr %s dev eth0 nud permanent", addr, mac))
		}
		return run(strings.Join(lines, "\n"))
	})
}

// here starts a relay whose loops are in the test's namespace too, where its endpoints say "relay".
func (n *neighbours) here(t *testing.T, p *loops, a *netlinkAddresses) *Relay {
	t.Helper()
	r := newRelay(Config{Addresses: a, UDPIdle: 5 * time.Second, Clock: clock.RealClock{}}, p)
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	p.each(func(*loop) { _ = netns.Set(n.own) })
	n.stop = func() {
		p.each(func(*loop) { _ = netns.Set(n.outside) }) // others have these threads after Close
		r.Close()
	}
	t.Cleanup(n.stop)
	return r
}

// frontRoutes lead both protocols of the fronts at port 80 to endpoints.
func frontRoutes(endpoint ...netip.AddrPort) []proxy.Route {
	var out []proxy.Route
	for i, addr := range []string{taken4, taken6, vacant4} {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			kind := []proxy.Kind{proxy.ExternalIP, proxy.LoadBalancer}[i%2]
			out = append(out, route(fmt.Sprintf("s%d-%s", i, strings.ToLower(string(protocol))), kind, protocol, netip.AddrPortFrom(netip.MustParseAddr(addr), 80), endpoint...))
		}
	}
	return out
}

func mustServe(t *testing.T, r *Relay, routes ...proxy.Route) {
	t.Helper()
	slices.SortStableFunc(routes, func(a, b proxy.Route) int { return strings.Compare(a.Service.Name, b.Service.Name) })
	if err := r.Sync(t.Context(), &proxy.Table{Routes: routes}, nil); err != nil {
		t.Fatal(err)
	}
}

func testPlanes(t *testing.T, test func(t *testing.T, newPlane func() *loops)) {
	t.Run("by lookup", func(t *testing.T) {
		needsLookup(t)
		test(t, func() *loops { return &loops{} })
	})
	t.Run("by sockets", func(t *testing.T) { test(t, func() *loops { return &loops{bound: true} }) })
}

func speaking(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0") // for a free port
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	speak(t, "relay", at)
	return netip.MustParseAddrPort(at)
}

// TestOnlyThePort: an external address gives its front's port to the proxy, and everything else of it stays where it was: for this host, for pods that
// it forwards for, for other hosts; nobody is told that it is here.
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
		for _, addr := range []string{vacant4, "10.96.0.1"} { // nobody has it, so only this host could answer
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
