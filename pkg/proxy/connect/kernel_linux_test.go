package connect

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/proxy"
)

func TestConnect(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:8080")
	h.serve(t, h.pods, "[fd01::2]:8080")
	h.serve(t, h.own, "10.1.0.1:8080")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:8080"), route("b 10.96.0.1:80 10.1.0.2:8080", udp), route("c [fd96::1]:80 [fd01::2]:8080"), route("d [fd96::1]:80 [fd01::2]:8080", udp),
		route("e 10.96.0.2:80"), route("f 10.96.0.2:80", udp), route("g 10.96.0.3:80", drop), route("h 10.96.0.4:80 10.1.0.1:8080"), route("i [fd96::2]:80"))
	for _, test := range []struct{ what, network, addr, want string }{
		{"TCP", "tcp", "10.96.0.1:80", "10.1.0.2:8080 10.1.0.1"},
		{"UDP", "udp", "10.96.0.1:80", "10.1.0.2:8080 10.1.0.1"},
		{"TCP, IPv6", "tcp", "[fd96::1]:80", "[fd01::2]:8080 fd01::1"},
		{"UDP, IPv6", "udp", "[fd96::1]:80", "[fd01::2]:8080 fd01::1"},
		{"no endpoint", "tcp", "10.96.0.2:80", unix.ECONNREFUSED.Error()},
		{"no endpoint, UDP", "udp", "10.96.0.2:80", unix.ECONNREFUSED.Error()},
		{"no endpoint, IPv6", "tcp", "[fd96::2]:80", unix.ECONNREFUSED.Error()},
		{"drops: left alone", "tcp", "10.96.0.3:80", unix.ENETUNREACH.Error()},
		{"no front: left alone", "tcp", "10.96.0.1:81", unix.ENETUNREACH.Error()},
		{"itself", "tcp", "10.96.0.4:80", "10.1.0.1:8080 10.1.0.1"},
		{"an endpoint directly", "tcp", "10.1.0.2:8080", "10.1.0.2:8080 10.1.0.1"},
	} {
		expect(t, test.what, ask(test.network, test.addr, nil), test.want)
	}
	expect(t, "bound to an address", ask("tcp", "10.96.0.1:80", &net.TCPAddr{IP: net.IPv4(10, 1, 0, 1)}), "10.1.0.2:8080 10.1.0.1")
	for _, local := range []string{"127.0.0.1", "127.9.9.9"} { // the relay would serve them, but there is none here
		expect(t, "bound to loopback", ask("tcp", "10.96.0.1:80", &net.TCPAddr{IP: net.ParseIP(local)}), unix.ENETUNREACH.Error())
	}
	tcp, udp, refused := h.kernel.Decisions()
	expect(t, "decisions", fmt.Sprint(tcp, udp, refused), "4 2 3")
}

// TestMappedAddresses: an IPv6 socket connects to an IPv4 address.
func TestMappedAddresses(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:8080")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:8080"), route("b 10.96.0.1:80 10.1.0.2:8080", udp), route("c 10.96.0.2:80", udp))
	mapped := func(addr string) *unix.SockaddrInet6 {
		return &unix.SockaddrInet6{Port: 80, Addr: netip.MustParseAddr(addr).As16()}
	}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		fd, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, mapped("10.96.0.1")); err != nil {
			t.Fatal(err)
		}
		peer, err := unix.Getpeername(fd)
		expect(t, "getpeername", fmt.Sprint(netip.AddrFrom16(peer.(*unix.SockaddrInet6).Addr), peer.(*unix.SockaddrInet6).Port, err), "::ffff:10.96.0.1 80 <nil>")
		_, _ = unix.Write(fd, []byte("?"))
		buffer := make([]byte, 64)
		n, from, err := unix.Recvfrom(fd, buffer, 0)
		expect(t, "answer", fmt.Sprint(string(buffer[:max(n, 0)]), err), "10.1.0.2:8080 10.1.0.1<nil>")
		if from, ok := from.(*unix.SockaddrInet6); kind == unix.SOCK_DGRAM && (!ok || from.Addr != mapped("10.96.0.1").Addr || from.Port != 80) {
			t.Errorf("the answer comes from %v", from)
		}
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, []byte("?"), 0, mapped("10.96.0.1")); err != nil {
		t.Fatal(err)
	}
	_, from, err := unix.Recvfrom(fd, make([]byte, 64), 0)
	if from, ok := from.(*unix.SockaddrInet6); err != nil || !ok || from.Addr != mapped("10.96.0.1").Addr || from.Port != 80 {
		t.Errorf("the answer comes from %v, %v", from, err)
	}
	expect(t, "refused", fmt.Sprint(unix.Sendto(fd, []byte("?"), 0, mapped("10.96.0.2"))), unix.ECONNREFUSED.Error())
}

func TestPeerIsService(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:8080")
	h.serve(t, h.pods, "[fd01::2]:8080")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:8080"), route("b 10.96.0.1:80 10.1.0.2:8080", udp), route("c [fd96::1]:80 [fd01::2]:8080"), route("d [fd96::1]:80 [fd01::2]:8080", udp))
	for _, addr := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
		for _, network := range []string{"tcp", "udp"} {
			c, err := net.Dial(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			expect(t, "peer of "+network, c.RemoteAddr().String(), addr)
		}
	}
	c, err := net.Dial("tcp", "10.1.0.2:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	expect(t, "peer of a direct connection", c.RemoteAddr().String(), "10.1.0.2:8080")
}

// TestUnconnected: one socket, such as a resolver's, sends to several Services, and keeps the endpoint of each while it
// exists.
func TestUnconnected(t *testing.T) {
	h := newHost(t)
	for _, addr := range []string{"10.1.0.2:53", "10.1.0.3:53", "10.1.0.4:53"} {
		h.serve(t, h.pods, addr)
	}
	both := route("a 10.96.0.1:53 10.1.0.2:53 10.1.0.3:53", udp)
	h.to(t, both, route("b 10.96.0.2:53 10.1.0.2:53 10.1.0.3:53", udp), route("c 10.96.0.3:53", udp))
	p, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	send := func(to string) string {
		t.Helper()
		_ = p.SetDeadline(time.Now().Add(patience))
		if _, err := p.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))); err != nil {
			return reason(err)
		}
		buffer := make([]byte, 64)
		n, from, err := p.ReadFrom(buffer)
		if err != nil {
			return reason(err)
		}
		expect(t, "the answer's source", from.String(), to)
		who, _, _ := bytes.Cut(buffer[:n], []byte(" "))
		return string(who)
	}
	first := map[string]string{}
	for range 10 {
		for _, to := range []string{"10.96.0.1:53", "10.96.0.2:53", "10.1.0.4:53"} {
			if who := send(to); first[to] == "" {
				first[to] = who
			} else {
				expect(t, "endpoint of "+to, who, first[to])
			}
		}
	}
	expect(t, "no endpoint", send("10.96.0.3:53"), unix.ECONNREFUSED.Error())
	// If the endpoint drains, the flow stays. If it is gone, the next packet goes to another.
	gone := first["10.96.0.1:53"]
	h.to(t, route("a 10.96.0.1:53 10.1.0.4:53 "+gone+"t", udp))
	expect(t, "drains", send("10.96.0.1:53"), gone)
	h.to(t, route("a 10.96.0.1:53 10.1.0.4:53", udp))
	expect(t, "another", send("10.96.0.1:53"), "10.1.0.4:53")
}

// TestSocketOfManyFlows: a socket that is connected to one Service and sends to another sees the address of each.
func TestSocketOfManyFlows(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:53")
	h.serve(t, h.pods, "10.1.0.3:53")
	h.to(t, route("a 10.96.0.1:53 10.1.0.2:53", udp), route("b 10.96.0.2:53 10.1.0.3:53", udp))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	at := func(last byte) *unix.SockaddrInet4 {
		return &unix.SockaddrInet4{Port: 53, Addr: [4]byte{10, 96, 0, last}}
	}
	if err := unix.Connect(fd, at(1)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, []byte("?"), 0, at(2)); err != nil { // a connected socket does not receive this answer
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte("?")); err != nil {
		t.Fatal(err)
	}
	_, from, err := unix.Recvfrom(fd, make([]byte, 64), 0)
	if from, ok := from.(*unix.SockaddrInet4); err != nil || !ok || from.Addr != at(1).Addr {
		t.Errorf("the answer comes from %v, %v", from, err)
	}
}

func TestEndpointsAreEven(t *testing.T) {
	h := newHost(t)
	text, count := "a 10.96.0.1:80", map[string]int{}
	for n := 2; n < 12; n++ {
		h.serve(t, h.pods, fmt.Sprintf("10.1.0.%d:80", n))
		text += fmt.Sprintf(" 10.1.0.%d:80", n)
	}
	h.to(t, route(text))
	for range 200 {
		count[ask("tcp", "10.96.0.1:80", nil)]++
	}
	for who, n := range count {
		if n != 20 || len(count) != 10 {
			t.Errorf("%s got %d of 200, of %d endpoints", who, n, len(count))
		}
	}
}

// TestAffinity: the client is the network namespace. It keeps its endpoint for the Service's affinity time, or until
// the endpoint drains.
func TestAffinity(t *testing.T) {
	h := newHost(t)
	for n := 2; n < 6; n++ {
		h.serve(t, h.pods, fmt.Sprintf("10.1.0.%d:80", n))
	}
	all := route("a 10.96.0.1:80 10.1.0.2:80 10.1.0.3:80 10.1.0.4:80 10.1.0.5:80", sticky)
	h.to(t, all)
	had := ask("tcp", "10.96.0.1:80", nil)
	for range 10 {
		expect(t, "again", ask("tcp", "10.96.0.1:80", nil), had)
	}
	others := map[string]bool{}
	for range 4 { // a different client each time
		var pod netns.NsHandle
		h.inside(t, h.pods, func() (err error) { pod, err = netns.New(); return err })
		h.inside(t, pod, func() error {
			c, err := net.Dial("udp", "10.96.0.1:80") // there is no route, but the program does not know that yet
			if err == nil {
				c.Close()
			}
			return nil
		})
		pod.Close()
	}
	short := route("a 10.96.0.1:80 10.1.0.2:80 10.1.0.3:80 10.1.0.4:80 10.1.0.5:80", func(r *proxy.Route) { r.Affinity = time.Second })
	h.to(t, short)
	expect(t, "after a change", ask("tcp", "10.96.0.1:80", nil), had)
	for deadline := time.Now().Add(patience); len(others) < 2 && time.Now().Before(deadline); {
		others[ask("tcp", "10.96.0.1:80", nil)] = true
		if len(others) < 2 {
			time.Sleep(1100 * time.Millisecond) // the kernel's clock cannot be faked
		}
	}
	if len(others) < 2 {
		t.Error("the affinity does not end")
	}
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:80", sticky))
	expect(t, "its endpoint is gone", ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
}

// TestNextProxy: programs continue without a proxy, and the next one takes them over.
func TestNextProxy(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	h.serve(t, h.pods, "10.1.0.3:80")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"))
	ids := h.links(t)
	h.Balancer.Close()
	expect(t, "without a proxy", ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
	h.start(t)
	h.to(t, route("a 10.96.0.1:80 10.1.0.3:80"))
	expect(t, "with the next", ask("tcp", "10.96.0.1:80", nil), "10.1.0.3:80 10.1.0.1")
	if now := h.links(t); now != ids {
		t.Errorf("links were %s, are %s: between them no one served", ids, now)
	}
	h.to(t)
	expect(t, "the empty Table", ask("tcp", "10.96.0.1:80", nil), unix.ENETUNREACH.Error())
	if _, err := os.Stat(h.kernel.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty Table leaves %s: %v", h.kernel.dir, err)
	}
}

func (h *host) links(t *testing.T) (out string) {
	t.Helper()
	for _, hook := range hooks {
		info, err := h.kernel.links[hook.name].Info()
		if err != nil {
			t.Fatal(err)
		}
		out += fmt.Sprint(info.ID, " ")
	}
	return out
}

var connectHook = hooks[len(hooks)-2]

// TestDetached: the next full comparison finds what another program has removed.
func TestDetached(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"))
	for what, take := range map[string]func(){
		"link": func() {
			l, err := link.LoadPinnedLink(h.kernel.pin(connectHook), nil)
			if err == nil {
				err = errors.Join(l.Detach(), l.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"pins":      func() { _ = os.RemoveAll(h.kernel.dir) },
		"pin":       func() { _ = os.Remove(h.kernel.pin(connectHook)) },
		"map's pin": func() { _ = os.Remove(filepath.Join(h.kernel.dir, layout, "winkube_fronts")) },
	} {
		take()
		apply(t, h.Balancer, h.table)
		expect(t, "after losing a "+what, ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
		if _, err := os.Stat(h.kernel.pin(connectHook)); err != nil {
			t.Errorf("after losing a %s: %v", what, err)
		}
	}
}

// TestOtherCgroup: two nodes on one machine do not see each other's Services.
func TestOtherCgroup(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	other := h.cgroup + "-other"
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(other)
	k := NewKernel(other)
	b := New(k, Limits{})
	apply(t, b, tableOf(route("a 10.96.0.1:80 10.1.0.2:80")))
	expect(t, "from another node", ask("tcp", "10.96.0.1:80", nil), unix.ENETUNREACH.Error())
	apply(t, b, &proxy.Table{})
	b.Close()
}

func TestCannot(t *testing.T) {
	for cgroup, want := range map[string]string{
		"/proc":             "cgroup /proc is not a directory of a cgroup2 file system",
		"/nowhere/at/all/x": "cgroup /nowhere/at/all/x: no such file or directory",
	} {
		expect(t, cgroup, fmt.Sprint(NewKernel(cgroup).Open()), want)
		expect(t, cgroup, fmt.Sprint(NewKernel(cgroup).Remove()), "<nil>")
	}
}

// TestFastOpen: data in the first packet, without a call of connect.
func TestFastOpen(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, []byte("?"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{10, 96, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	n, err := unix.Read(fd, buffer)
	expect(t, "answer", fmt.Sprint(string(buffer[:max(n, 0)]), err), "10.1.0.2:80 10.1.0.1<nil>")
}

// TestNoGap: while proxies stop and start, and endpoints change, no client finds a Service missing.
func TestNoGap(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	h.serve(t, h.pods, "10.1.0.3:80")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"))
	stop, result, good := make(chan struct{}), make(chan string, 1), atomic.Int64{}
	go func() {
		runtime.LockOSThread()
		bad := ""
		if err := netns.Set(h.own); err != nil {
			bad = err.Error()
		}
		for bad == "" {
			select {
			case <-stop:
				result <- ""
				return
			default:
			}
			if got := ask("tcp", "10.96.0.1:80", nil); got == "10.1.0.2:80 10.1.0.1" || got == "10.1.0.3:80 10.1.0.1" {
				good.Add(1)
			} else {
				bad = fmt.Sprintf("after %d connections: %s", good.Load(), got)
			}
		}
		result <- bad
	}()
	for n := 0; (n < 30 || good.Load() <= 100) && len(result) == 0; n++ {
		h.to(t, route(fmt.Sprintf("a 10.96.0.1:80 10.1.0.%d:80", 2+n%2)))
		h.to(t, route("a 10.96.0.1:80 10.1.0.2:80 10.1.0.3:80"))
		h.Balancer.Close()
		h.start(t)
	}
	close(stop)
	expect(t, "a client that was not served", <-result, "")
}
