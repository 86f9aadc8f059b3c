package epoll

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// TestNobodyElseAnswers: a service address answers only at the service's ports, and an address of no service not at
// all, whatever programs of the host listen on all addresses; also if addresses are added one by one, and after the
// rules were flushed.
func TestNobodyElseAnswers(t *testing.T) {
	endpoint := relaytest.TCPServer(t, relaytest.WhoAndEcho)
	a := ranged(t, "10.96.0.0/12", "fd00:96::/112")
	nstest.Wildcards(t)
	r := relay.New(New(runtime.GOMAXPROCS(0)), relay.Config{Addresses: a, Clock: clock.RealClock{}})
	defer r.Close()
	table := &proxy.Table{Routes: []proxy.Route{
		relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.1:80"), endpoint),
		relaytest.Route("y", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("[fd00:96::1]:80"), endpoint),
		relaytest.Route("z", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("198.51.100.1:80"), endpoint)}}
	check := func(when string) {
		t.Helper()
		if err := r.Sync(t.Context(), table, nil); err != nil {
			t.Fatal(err)
		}
		for _, one := range table.Routes {
			if who, err := relaytest.Ask(v1.ProtocolTCP, one.Front); err != nil || who != endpoint {
				t.Errorf("%s: %s answers %v, %v", when, one.Front, who, err)
			}
		}
		for _, addr := range []string{"10.96.0.1", "10.99.9.9", "fd00:96::1", "fd00:96::99", "198.51.100.1"} {
			if got := nstest.AnswersAt(t, addr); got != "refused, refused" {
				t.Errorf("%s: at %s: %s", when, addr, got)
			}
		}
		for _, addr := range []string{"192.0.2.1", "127.0.0.1", "::1"} {
			if got := nstest.AnswersAt(t, addr); got != "wildcard, wildcard" {
				t.Errorf("%s: the host's own %s: %s", when, addr, got)
			}
		}
	}
	check("by routes")
	if _, err := command.New().Run(t.Context(), nil, "nft", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	check("after a flush")
	a.ranges = nil
	table.Routes[0].Front = netip.MustParseAddrPort("10.99.9.9:80")
	for _, name := range []string{"x", "y", "z"} { // one more, to change single addresses
		changed := []proxy.ServiceName{{Namespace: "default", Name: name}}
		if err := r.Sync(t.Context(), table, changed); err != nil {
			t.Fatal(err)
		}
	}
	for addr, want := range map[string]string{"10.99.9.9": "refused, refused", "198.51.100.1": "refused, refused", "192.0.2.1": "wildcard, wildcard"} {
		if got := nstest.AnswersAt(t, addr); got != want {
			t.Errorf("by addresses: at %s: %s", addr, got)
		}
	}
}

// TestOnlyThePort: the proxy gets only the front's port of an external address. The rest of the address stays with its
// owner: for this host, for the pods that it forwards for, and for other hosts. No host learns that the address is
// here.
func TestOnlyThePort(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func(*relay.Shared) *plane) {
		n := newNeighbours(t)
		endpoint := speaking(t)
		a := withRanges(t, "10.96.0.0/12")
		mine, theirs := n.MAC(t, n.Own), n.MAC(t, n.Owner)
		r := n.here(t, newPlane, a)
		clusterIP := relaytest.Route("cluster", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.1:80"), endpoint)
		mustServe(t, r, append(frontRoutes(endpoint), clusterIP)...)
		fronts := []string{nstest.Taken4 + ":80", "[" + nstest.Taken6 + "]:80"}
		others := []string{nstest.Taken4 + ":7", "[" + nstest.Taken6 + "]:7"}
		check := func(when string) {
			t.Helper()
			for _, network := range []string{"tcp", "udp"} {
				for i := range fronts {
					n.Meets(t, when+": this host", n.Own, network, fronts[i], "relay")
					n.Meets(t, when+": this host", n.Own, network, others[i], "owner")
					n.Meets(t, when+": a pod", n.Pod, network, fronts[i], "relay")
					n.Meets(t, when+": a pod", n.Pod, network, others[i], "owner")
					n.Meets(t, when+": a host to which the address is here", n.Client, network, fronts[i], "relay")
					n.Meets(t, when+": a host to which the address is here", n.Client, network, others[i], "owner")
				}
			}
		}
		// The client asks the network for the addresses.
		for _, network := range []string{"tcp", "udp"} {
			n.Meets(t, "the client", n.Client, network, fronts[0], "owner")
			n.Meets(t, "the client", n.Client, network, fronts[1], "owner")
		}
		for _, addr := range []string{nstest.Taken4, nstest.Taken6} {
			if got := n.Hardware(t, addr); got != theirs {
				t.Errorf("the client has %s for %s, want the owner's %s", got, addr, theirs)
			}
		}
		for _, addr := range []string{nstest.Vacant4, "10.96.0.1"} { // no host has it, so only this one could answer
			n.Meets(t, "the client", n.Client, "tcp", addr+":80", "dial tcp "+addr+":80: connect: no route to host")
			if got := n.Hardware(t, addr); got != "" {
				t.Errorf("%s answers ARP for %s (this host is %s)", got, addr, mine)
			}
		}
		n.Balanced(t)
		check("served")
		n.Meets(t, "the client", n.Client, "tcp", nstest.Vacant4+":80", "relay")
		if got := nstest.Held(t, addresses.OwnInterface); got != "none" {
			t.Errorf("addresses %s are on this host", got)
		}
		left := nstest.PortTraces(t)
		if !strings.Contains(left, "122 ipproto tcp dport 80 lookup 1190600080") {
			t.Errorf("rules and routes: %s", left)
		}
		// A proxy that is killed leaves them, and the next one continues with them.
		n.stop()
		if got := nstest.PortTraces(t); got != left {
			t.Errorf("left is %s; want %s", got, left)
		}
		for _, space := range []netns.NsHandle{n.Own, n.Pod, n.Client} {
			n.Meets(t, "while no proxy runs", space, "tcp", fronts[0], "refused")
		}
		a = withRanges(t, "10.96.0.0/12")
		r = n.here(t, newPlane, a)
		mustServe(t, r, append(frontRoutes(endpoint), clusterIP)...)
		if got := nstest.PortTraces(t); got != left {
			t.Errorf("the next proxy made of it %s; want %s", got, left)
		}
		check("after a restart")
		mustServe(t, r, clusterIP)
		if got := nstest.PortTraces(t); got != "" {
			t.Errorf("without fronts there is %s", got)
		}
		n.Meets(t, "without the Service, this host", n.Own, "tcp", fronts[0], "owner")
		mustServe(t, r, frontRoutes(endpoint)...)
		if _, err := withRanges(t).Set(t.Context(), relay.Local{}); err != nil { // as --cleanup does
			t.Fatal(err)
		}
		tables, err := command.New().Run(t.Context(), nil, "nft", "list", "tables")
		if got := nstest.PortTraces(t); got != "" || err != nil || len(tables) > 0 || nstest.AnswerTraces(t) != "0 rules, 0 routes" {
			t.Errorf("cleaned up, but there is %s %s %s, %v", got, tables, nstest.AnswerTraces(t), err)
		}
	})
}

// TestRefusedPort: a front without endpoints refuses, although its address is not local.
func TestRefusedPort(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func(*relay.Shared) *plane) {
		n := newNeighbours(t)
		n.Balanced(t)
		endpoint := speaking(t)
		other := program(t, "tcp4", "0.0.0.0:80") // must not answer instead of the front
		r := n.here(t, newPlane, withRanges(t))
		mustServe(t, r, frontRoutes()...)
		for name, space := range map[string]netns.NsHandle{"this host": n.Own, "a pod": n.Pod, "the client": n.Client} {
			for _, network := range []string{"tcp", "udp"} {
				n.Meets(t, name, space, network, nstest.Taken4+":80", "refused")
				n.Meets(t, name, space, network, "["+nstest.Taken6+"]:80", "refused")
			}
		}
		_ = other.Close()
		mustServe(t, r, frontRoutes(endpoint)...)
		n.Meets(t, "served, a pod", n.Pod, "tcp", nstest.Taken4+":80", "relay")
		n.Meets(t, "served, a pod", n.Pod, "udp", nstest.Taken4+":80", "relay")
	})
}

// TestSamePortAgain: a client whose connection we have closed may connect again from the same port, as the kernel
// allows (RFC 9293, 3.6.1).
func TestSamePortAgain(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func(*relay.Shared) *plane) {
		n := newNeighbours(t)
		n.Balanced(t)
		endpoint := speaking(t) // sends a word and closes
		mustServe(t, n.here(t, newPlane, withRanges(t)), frontRoutes(endpoint)...)
		for name, space := range map[string]netns.NsHandle{"this host": n.Own, "a pod": n.Pod, "the client": n.Client} {
			for _, front := range []string{nstest.Taken4 + ":80", "[" + nstest.Taken6 + "]:80"} {
				for i := range 3 {
					nstest.Within(t, space, func() error {
						client := net.Dialer{LocalAddr: &net.TCPAddr{Port: 40000}, Timeout: time.Minute}
						conn, err := client.Dial("tcp", front)
						if err != nil {
							return fmt.Errorf("%s, connection %d: %w", name, i, err)
						}
						defer conn.Close()
						_ = conn.SetDeadline(time.Now().Add(time.Minute))
						if word, err := io.ReadAll(conn); err != nil || string(word) != "relay" {
							return fmt.Errorf("%s, connection %d: it says %q (%v)", name, i, word, err)
						}
						return nil
					})
				}
			}
		}
	})
}

// wholeOnly does not support single ports.
type wholeOnly struct{ relay.Addresses }

func (wholeOnly) HoldsPorts(netip.Addr) bool { return false }

// TestWholeAddress: without support for rules with ports, the whole address becomes local, but is not announced to the
// network.
func TestWholeAddress(t *testing.T) {
	n := newNeighbours(t)
	endpoint := speaking(t)
	a := withRanges(t)
	r := n.here(t, withLookup, wholeOnly{a})
	mustServe(t, r, frontRoutes(endpoint)...)
	if got := nstest.Held(t, addresses.OwnInterface); got != "192.0.2.10 192.0.2.9 fd01::9" || nstest.PortTraces(t) != "" {
		t.Fatalf("addresses %s, rules %s", got, nstest.PortTraces(t))
	}
	n.Meets(t, "the client", n.Client, "tcp", nstest.Vacant4+":80", "dial tcp "+nstest.Vacant4+":80: connect: no route to host")
	n.Meets(t, "the client", n.Client, "tcp", nstest.Taken4+":80", "owner")
	n.Balanced(t)
	for _, addr := range []string{nstest.Taken4 + ":80", nstest.Vacant4 + ":80", "[" + nstest.Taken6 + "]:80"} {
		n.Meets(t, "the client", n.Client, "tcp", addr, "relay")
		n.Meets(t, "the client", n.Client, "udp", addr, "relay")
	}
}

// TestPathTooNarrow: a router between the client and this host reports that packets are too large, to an address that
// is not local here; the following packets are smaller.
func TestPathTooNarrow(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func(*relay.Shared) *plane) {
		n := newNeighbours(t)
		const size = 200_000
		endpoint := relaytest.TCPServer(t, func(c *net.TCPConn) { _, _ = c.Write(make([]byte, size)) })
		r := n.here(t, newPlane, withRanges(t))
		// The owner is the router: behind it, on a link with a smaller MTU, the pod's namespace is a client that does
		// not know that.
		nstest.Within(t, n.Owner, func() error {
			return nstest.IP("link add far0 type veth peer name far1\nlink set far0 mtu 1300 up\naddr add 10.8.0.1/24 dev far0\naddr add fd08::1/64 dev far0 nodad")
		})
		var far netlink.Link
		nstest.Within(t, n.Owner, func() (err error) {
			if far, err = netlink.LinkByName("far1"); err == nil {
				err = netlink.LinkSetNsFd(far, int(n.Pod))
			}
			return err
		})
		nstest.Within(t, n.Pod, func() error {
			return nstest.IP("link set pod1 down\nlink set far1 up\naddr add 10.8.0.2/24 dev far1\naddr add fd08::2/64 dev far1 nodad\nroute add default via 10.8.0.1\nroute add default via fd08::1")
		})
		if err := nstest.IP("route add 10.8.0.0/24 via 192.0.2.3\nroute add fd08::/64 via fd01::3"); err != nil {
			t.Fatal(err)
		}
		mine := n.MAC(t, n.Own)
		nstest.Within(t, n.Owner, func() error { // it has removed the addresses, and knows where they are now
			return nstest.IP("addr del 192.0.2.9/32 dev eth0\naddr del fd01::9/128 dev eth0\nneigh replace 192.0.2.9 lladdr " + mine + " dev eth0 nud permanent\nneigh replace fd01::9 lladdr " + mine + " dev eth0 nud permanent")
		})
		mustServe(t, r, frontRoutes(endpoint)...)
		for _, addr := range []string{nstest.Taken4 + ":80", "[" + nstest.Taken6 + "]:80"} {
			nstest.Within(t, n.Pod, func() error {
				c, err := net.DialTimeout("tcp", addr, time.Minute)
				if err != nil {
					return err
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				if got, err := io.Copy(io.Discard, c); err != nil || got != size {
					return fmt.Errorf("from %s came %d of %d bytes: %w", addr, got, size, err)
				}
				return nil
			})
		}
	})
}

// TestManyPorts: with more than a few ports, additional rules let other traffic skip them. Their fronts are served all
// the same, and the additional rules are removed later.
func TestManyPorts(t *testing.T) {
	n := newNeighbours(t)
	n.Meets(t, "the client", n.Client, "tcp", "["+nstest.Taken6+"]:7", "owner") // so that the owner knows the client: it could not resolve its address afterwards
	n.Balanced(t)
	endpoint := speaking(t)
	r := n.here(t, withLookup, withRanges(t))
	routes := frontRoutes(endpoint)
	few := len(routes)
	for i := range 16 { // and two more
		for _, addr := range []string{nstest.Taken4, nstest.Taken6} {
			routes = append(routes, relaytest.Route(fmt.Sprintf("x%s-%d", addr, i), proxy.ExternalIP, v1.ProtocolTCP, netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(5000+i)), endpoint))
		}
	}
	steps := func() int {
		return strings.Count(nstest.PortTraces(t), "goto") + strings.Count(nstest.PortTraces(t), ":123")
	}
	mustServe(t, r, routes...)
	if got := steps(); got != 7 { // two prefixes of IPv4, one of IPv6, and skip and end of each
		t.Errorf("%d steps: %s", got, nstest.PortTraces(t))
	}
	check := func() {
		t.Helper()
		for name, space := range map[string]netns.NsHandle{"this host": n.Own, "a pod": n.Pod, "the client": n.Client} {
			for _, addr := range []string{nstest.Taken4, "[" + nstest.Taken6 + "]"} {
				n.Meets(t, name, space, "tcp", addr+":80", "relay")
				n.Meets(t, name, space, "udp", addr+":80", "relay")
				n.Meets(t, name, space, "tcp", addr+":7", "owner")
			}
		}
	}
	check()
	for _, addr := range []string{nstest.Taken4, "[" + nstest.Taken6 + "]"} {
		n.Meets(t, "the client", n.Client, "tcp", addr+":5015", "relay")
	}
	mustServe(t, r, routes[:few]...)
	if got := steps(); got != 0 {
		t.Errorf("%d steps are left: %s", got, nstest.PortTraces(t))
	}
	check()
}
