package kubelet_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/hostport"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/proxy"
)

// inSpace runs do on a thread of a network namespace.
func inSpace(t *testing.T, space netns.NsHandle, do func() error) {
	t.Helper()
	var err error
	var running sync.WaitGroup
	running.Go(func() {
		runtime.LockOSThread() // never unlocked, so that the thread is not reused
		if err = netns.Set(space); err == nil {
			err = do()
		}
	})
	running.Wait()
	if err != nil {
		t.Fatal(err)
	}
}

func batch(lines string) error {
	_, err := command.New().Run(context.Background(), []byte(lines), "ip", "-batch", "-")
	return err
}

// echo answers each client with its address, on TCP and UDP.
func echo(t *testing.T, at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	p, err := net.ListenPacket("udp", at)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	t.Cleanup(func() { l.Close(); p.Close(); running.Wait() })
	running.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_, _ = c.Write([]byte(c.RemoteAddr().(*net.TCPAddr).IP.String()))
			c.Close()
		}
	})
	running.Go(func() {
		buffer := make([]byte, 16)
		for _, from, err := p.ReadFrom(buffer); err == nil; _, from, err = p.ReadFrom(buffer) {
			_, _ = p.WriteTo([]byte(from.(*net.UDPAddr).IP.String()), from)
		}
	})
	return nil
}

// seen asks an echo, and returns which address it saw, or "nothing".
func seen(network, at string) string {
	c, err := net.DialTimeout(network, at, 5*time.Second)
	if err != nil {
		return "nothing"
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	_, _ = c.Write([]byte("?"))
	buffer := make([]byte, 64)
	n, _ := c.Read(buffer)
	if n == 0 {
		return "nothing"
	}
	return string(buffer[:n])
}

// TestRulesKernel: real rules lead clients outside, on the host, in another pod and in the pod itself to hostPorts, and go again. Docker's rules for
// the same port do not come first. A client that keeps sending to a pod that is gone reaches its successor.
func TestRulesKernel(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	for _, program := range []string{"ip", "iptables-restore", "ip6tables-restore"} {
		if _, err := command.New().Run(t.Context(), nil, program, "-V"); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if netns.Set(before) == nil { // otherwise the thread ends with its goroutine
			runtime.UnlockOSThread()
		}
		before.Close()
	})
	var client, a, b, node netns.NsHandle
	for _, space := range []*netns.NsHandle{&client, &a, &b, &node} { // the test stays in the last
		if *space, err = netns.New(); err != nil {
			t.Skipf("cannot make a network namespace here: %v", err)
		}
		t.Cleanup(func() { space.Close() })
	}
	wire(t, client, a, b)
	routes := []proxy.Route{hostPortRoute(v1.ProtocolTCP, "0.0.0.0:8080", "10.9.0.2:80"), hostPortRoute(v1.ProtocolUDP, "0.0.0.0:8080", "10.9.0.2:80"),
		hostPortRoute(v1.ProtocolTCP, "[::]:8080", "[fd09::2]:80"), hostPortRoute(v1.ProtocolUDP, "[::]:8080", "[fd09::2]:80")}
	cfg := hostport.RulesConfig{Run: command.New(), Bridge: "winkube0", Doors: func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd01::1")}, nil
	}, Forget: hostnet.ForgetFlows}
	r := hostport.NewRules(cfg) // programs start on the test's thread, which is on the node
	set := func(want []proxy.Route) {
		t.Helper()
		if err := r.Set(t.Context(), want, true); err != nil {
			t.Fatal(err)
		}
	}
	set(routes)
	for range 2 { // the second time another agent finds the rules
		for _, c := range []struct {
			from   string
			space  netns.NsHandle
			v4, v6 string
		}{
			{"a client outside", client, "192.0.2.9", "fd01::9"}, {"the host", node, "192.0.2.1", "fd01::1"},
			{"another pod", b, "10.9.0.1", "fd09::1"}, {"the pod itself", a, "10.9.0.1", "fd09::1"},
		} {
			for _, network := range []string{"tcp", "udp"} {
				inSpace(t, c.space, func() error {
					if got := seen(network, "192.0.2.1:8080"); got != c.v4 {
						t.Errorf("%s, %s: the pod saw %s, want %s", c.from, network, got, c.v4)
					}
					if got := seen(network, "[fd01::1]:8080"); got != c.v6 {
						t.Errorf("%s, %s: the pod saw %s, want %s", c.from, network, got, c.v6)
					}
					return nil
				})
			}
		}
		r = hostport.NewRules(cfg)
		set(routes)
	}
	moves(t, client, set, routes)

	set(nil)
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		if saved, err := command.New().Run(t.Context(), nil, tool); err != nil || strings.Contains(string(saved), "WINKUBE") {
			t.Errorf("%s: %v\n%s", tool, err, saved)
		}
	}
	inSpace(t, client, func() error {
		if got := seen("tcp", "192.0.2.1:8080"); got != "nothing" {
			t.Errorf("without rules the pod saw %s", got)
		}
		return nil
	})
}

// moves has a client with one UDP socket send while the port moves from one pod to the other.
func moves(t *testing.T, client netns.NsHandle, set func([]proxy.Route), routes []proxy.Route) {
	t.Helper()
	var c net.Conn
	inSpace(t, client, func() (err error) {
		c, err = net.Dial("udp", "192.0.2.1:8080")
		return err
	})
	defer c.Close()
	ask := func() string {
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		_, _ = c.Write([]byte("?"))
		buffer := make([]byte, 64)
		n, _ := c.Read(buffer)
		return string(buffer[:n])
	}
	if got := ask(); got != "192.0.2.9" {
		t.Errorf("the first pod saw %q", got)
	}
	moved := slices.Clone(routes)
	moved[1] = hostPortRoute(v1.ProtocolUDP, "0.0.0.0:8080", "10.9.0.3:80")
	set(moved)
	if got := ask(); got != "b" {
		t.Errorf("after the port has moved to another pod, %q answers", got)
	}
}

// wire connects a client, the node, where the test is, and two pods on the node's bridge. Pod a echoes, pod b says b.
func wire(t *testing.T, client, a, b netns.NsHandle) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, value string) error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644) }
	must(batch("link set lo up\nlink add winkube0 type bridge\nlink set winkube0 up\naddr add 10.9.0.1/24 dev winkube0\naddr add fd09::1/64 dev winkube0 nodad"))
	must(errors.Join(write("ipv4/ip_forward", "1"), write("ipv6/conf/all/forwarding", "1")))
	for _, l := range []struct {
		name, more string
		to         netns.NsHandle
	}{{"eth0", "addr add 192.0.2.1/24 dev eth0\naddr add fd01::1/64 dev eth0 nodad", client}, {"pa", "link set pa master winkube0", a}, {"pb", "link set pb master winkube0", b}} {
		must(veth(l.name, l.to))
		must(batch("link set " + l.name + " up\n" + l.more))
		if l.name != "eth0" { // as the kubelet's ports: where frames on bridges meet the packet filter, a pod meets itself only with it
			port, err := netlink.LinkByName(l.name)
			must(err)
			must(netlink.LinkSetHairpin(port, true))
		}
	}
	end := func(space netns.NsHandle, v4, v6, via4, via6 string) {
		inSpace(t, space, func() error {
			return batch("link set lo up\nlink set eth0 up\naddr add " + v4 + "/24 dev eth0\naddr add " + v6 + "/64 dev eth0 nodad\nroute add default via " + via4 + "\nroute add default via " + via6)
		})
	}
	end(client, "192.0.2.9", "fd01::9", "192.0.2.1", "fd01::1")
	end(a, "10.9.0.2", "fd09::2", "10.9.0.1", "fd09::1")
	end(b, "10.9.0.3", "fd09::3", "10.9.0.1", "fd09::1")
	inSpace(t, a, func() error { return errors.Join(echo(t, "10.9.0.2:80"), echo(t, "[fd09::2]:80")) })
	inSpace(t, b, func() error {
		p, err := net.ListenPacket("udp", "10.9.0.3:80")
		if err != nil {
			return err
		}
		var running sync.WaitGroup
		t.Cleanup(func() { p.Close(); running.Wait() })
		running.Go(func() {
			buffer := make([]byte, 16)
			for _, from, err := p.ReadFrom(buffer); err == nil; _, from, err = p.ReadFrom(buffer) {
				_, _ = p.WriteTo([]byte("b"), from)
			}
		})
		return nil
	})
	_, err := command.New().Run(t.Context(), []byte("*nat\n:DOCKER - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n-A DOCKER -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.9.0.99:9\nCOMMIT\n"),
		"iptables-restore", "--noflush")
	must(err)
}

func veth(name string, to netns.NsHandle) error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(to)})
}

func hostPortRoute(protocol v1.Protocol, front, to string) proxy.Route {
	return proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "shop", Name: "web"}}, Kind: proxy.NodePort, Protocol: protocol,
		Front: netip.MustParseAddrPort(front), Backends: []proxy.Endpoint{{Addr: netip.MustParseAddrPort(to), Local: true}}}
}
