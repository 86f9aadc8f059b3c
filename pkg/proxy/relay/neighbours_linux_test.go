package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// Fronts whose address another host of the network has, and at .10 one that no host has.
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

// hardware is what the client's neighbour table has for an address, "" when none answered.
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
	p.ledger = r.counts.ledger // which the first front would bring
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
