package epoll

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// TestHalfOpen: there are few connections to an endpoint that does not answer, and other Services are served meanwhile.
func TestHalfOpen(t *testing.T) {
	h := relaytest.NewHost(t, newSubject(), func(c *relay.Config) { c.Capacity = limits.Capacity{Files: 1024, Ports: 1000} })
	silent := deafEndpoint(t)
	h.MustSync(t, relaytest.Route("deaf", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), silent), relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1), h.Endpoint(0, v1.ProtocolTCP)))
	limit := h.Use(t, "half_open_of_front").Limit
	if front := h.Use(t, "connections_of_front").Limit; limit > front/3 {
		t.Errorf("%d of a front's %d connections may be half-open", limit, front)
	}
	for n := range 2 * limit {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: h.Addr(byte(100 + n%4)).AsSlice()}, Timeout: time.Minute}
		c, err := dialer.Dial("tcp", h.Front(0).String())
		if err == nil {
			defer c.Close()
		} else if !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
	}
	relaytest.Eventually(t, "as many wait as may", func() bool { return h.Use(t, "half_open_of_front").Used == limit })
	if open := relaytest.Fill(t, h.Addr(120), h.Front(1), 1); len(open) != 1 {
		t.Error("another Service is not served")
	}
	if u := h.Use(t, "half_open_of_front"); u.Used > u.Limit {
		t.Errorf("%+v", u)
	}
}

// deafEndpoint listens but does not accept: its queue is full, so the kernel answers no more connections.
func deafEndpoint(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = syscall.Listen(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*syscall.SockaddrInet4).Port))
	for range 3 {
		c, err := net.DialTimeout("tcp", addr.String(), 200*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skipf("%s answers although nothing accepts", addr)
	return addr
}

// inFewPorts runs a test again, in a network namespace with a small range of source ports, because the loops' threads
// do not follow a test into one. false: this was the outer run.
func inFewPorts(t *testing.T, first, last int) bool {
	t.Helper()
	const inside = "WINKUBE_FEW_PORTS"
	if os.Getenv(inside) == "" {
		if os.Getuid() != 0 {
			t.Skip("needs root for its own network namespace")
		}
		t.Setenv(inside, "1")
		out, err := command.New().Run(t.Context(), nil, "unshare", "--net", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		t.Logf("%s", out)
		return false
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", first, last), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// TestHostKeepsPorts: if forged clients flood four UDP Services, source ports are left for the host's own requests
// (DNS, NTP), and other clients keep their sessions.
func TestHostKeepsPorts(t *testing.T) {
	const ports = 600
	if !inFewPorts(t, 40000, 40000+ports-1) {
		return
	}
	r := relay.New(New(runtime.GOMAXPROCS(0)), relay.Config{Addresses: relaytest.NewAddresses(), Clock: clock.RealClock{}})
	defer r.Close()
	endpoint := relaytest.UDPServer(t)
	table := &proxy.Table{}
	front := func(n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(n + 1)}), 53)
	}
	for n := range 5 {
		table.Routes = append(table.Routes, relaytest.Route(fmt.Sprint("x", n), proxy.ClusterIP, v1.ProtocolUDP, front(n), endpoint))
	}
	if err := r.Sync(t.Context(), table, nil); err != nil {
		t.Fatal(err)
	}
	exchange := func(from netip.AddrPort, to netip.AddrPort) error {
		c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = relaytest.Question(c)
		return err
	}
	for n := range 2 * ports { // each from its own address, with ports outside the range
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}), 2000)
		if err := exchange(from, front(n%4)); err != nil {
			t.Fatalf("client %d: %v", n, err)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.Collectors()...)
	used, limit := relaytest.MetricOf(t, registry, "kubeproxy_relay_limit_used", "sessions"), relaytest.MetricOf(t, registry, "kubeproxy_relay_limit", "sessions")
	if used != ports/2 || limit != ports/2 {
		t.Errorf("%d of %d sessions, want %d of as many", used, limit, ports/2)
	}
	anyPort := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	for range 100 {
		if err := exchange(anyPort, endpoint); err != nil {
			t.Fatalf("the host's own question: %v", err)
		}
	}
	if err := exchange(anyPort, front(4)); err != nil {
		t.Errorf("another Service: %v", err)
	}
}

// TestServiceStaysReachable: one client has all connections to an endpoint that it can get, and others on the same node
// still get in.
func TestServiceStaysReachable(t *testing.T) {
	const ports = 200
	if !inFewPorts(t, 40000, 40000+ports-1) {
		return
	}
	r := relay.New(New(runtime.GOMAXPROCS(0)), relay.Config{Addresses: relaytest.NewAddresses(), Clock: clock.RealClock{}})
	defer r.Close()
	endpoint := relaytest.TCPServer(t, relaytest.WhoAndEcho)
	front := netip.MustParseAddrPort("127.0.1.1:80")
	if err := r.Sync(t.Context(), &proxy.Table{Routes: []proxy.Route{relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, front, endpoint)}}, nil); err != nil {
		t.Fatal(err)
	}
	held := 0
	for n := range ports {
		c, err := relaytest.VisitFrom(netip.MustParseAddr("127.0.2.1"), 2000+n, front)
		if err != nil {
			continue
		}
		defer c.Close()
		held++
	}
	if held != ports/2 {
		t.Errorf("one client holds %d, want %d", held, ports/2)
	}
	for n := range 20 {
		c, err := relaytest.VisitFrom(netip.MustParseAddr("127.0.2.2"), 2000+n, front)
		if err != nil {
			t.Fatalf("another client, connection %d: %v", n, err)
		}
		defer c.Close()
	}
	for range 4 { // the host's own, such as a probe
		c, err := net.Dial("tcp", endpoint.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
}

// TestFewFiles: with few descriptors the relay continues, opens a new front, and logs the problem once. It runs in a
// separate process with a limit of 256: once the relay knows the limit, and once it assumes a higher one, so that the
// system refuses.
func TestFewFiles(t *testing.T) {
	const inside = "WINKUBE_FEW_FILES"
	if mode := os.Getenv(inside); mode != "" {
		fewFiles(t, mode)
		return
	}
	echo := relaytest.TCPServer(t, relaytest.WhoAndEcho)
	for _, mode := range []string{"known", "refused"} {
		t.Run(mode, func(t *testing.T) {
			control, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer control.Close()
			t.Setenv(inside, mode+" "+echo.String()+" "+control.Addr().String())
			ended := make(chan error, 1)
			go func() {
				out, err := command.New().Run(t.Context(), nil, os.Args[0], "-test.run=^TestFewFiles$", "-test.v")
				if err == nil && !strings.Contains(string(out), "--- PASS: TestFewFiles") {
					err = fmt.Errorf("it says %s", out)
				}
				ended <- err
				_ = control.Close()
			}()
			orders, err := control.Accept()
			if err != nil {
				t.Fatal(err, <-ended)
			}
			defer orders.Close()
			lines := bufio.NewScanner(orders)
			await := func(prefix string) string {
				t.Helper()
				for lines.Scan() {
					if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
						return rest
					}
				}
				t.Fatalf("the relay has ended before %q", prefix)
				return ""
			}
			await("serving")
			existing, another := netip.MustParseAddrPort("127.78.1.1:18083"), netip.MustParseAddrPort("127.78.1.2:18083")
			var kept []net.Conn
			for range 300 { // more than the limit
				if c, err := relaytest.VisitFrom(netip.MustParseAddr("127.78.2.1"), 0, existing); err == nil {
					kept = append(kept, c)
					defer c.Close()
				}
			}
			if len(kept) < 20 {
				t.Errorf("one client gets only %d connections", len(kept))
			}
			for n := range 20 {
				c, err := relaytest.VisitFrom(netip.AddrFrom4([4]byte{127, 78, 3, byte(n)}), 0, existing)
				if err != nil {
					t.Fatalf("newcomer %d: %v", n, err)
				}
				defer c.Close()
			}
			_, _ = fmt.Fprintln(orders, "open another")
			await("opened")
			c, err := relaytest.VisitFrom(netip.MustParseAddr("127.78.4.1"), 0, another)
			if err != nil {
				t.Fatalf("at the new front: %v", err)
			}
			defer c.Close()
			_, _ = fmt.Fprintln(orders, "end")
			want := map[string]string{"known": "0", "refused": "1"}[mode]
			if said := await("said that the system refuses: "); said != want {
				t.Errorf("it said %s times that the system refuses, want %s", said, want)
			}
			if said := await("said otherwise: "); said > "3" { // a client's share, and the relay's
				t.Errorf("it said %s times that a limit was reached", said)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// fewFiles is the relay of TestFewFiles.
func fewFiles(t *testing.T, mode string) {
	args := strings.Fields(mode)
	endpoint := netip.MustParseAddrPort(args[1])
	orders, err := net.Dial("tcp", args[2])
	if err != nil {
		t.Fatal(err)
	}
	defer orders.Close()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 256, Max: 256}); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&log)
	cfg := relay.Config{Addresses: relaytest.NewAddresses(), Clock: clock.RealClock{}, ClientShare: 90}
	if args[0] == "refused" {
		cfg.Capacity = limits.Capacity{Files: 4096, Ports: 28232}
	}
	r := relay.New(New(runtime.GOMAXPROCS(0)), cfg)
	defer r.Close()
	table := &proxy.Table{Routes: []proxy.Route{relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("127.78.1.1:18083"), endpoint)}}
	if err := r.Sync(t.Context(), table, nil); err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintln(orders, "serving")
	in := bufio.NewReader(orders)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	table.Routes = append(table.Routes, relaytest.Route("y", proxy.NodePort, v1.ProtocolTCP, netip.MustParseAddrPort("127.78.1.2:18083"), endpoint))
	if err := r.Sync(t.Context(), table, nil); err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintln(orders, "opened")
	if _, err := in.ReadString('\n'); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	klog.Flush()
	klog.SetOutput(io.Discard)
	text := log.String()
	_, _ = fmt.Fprintf(orders, "said that the system refuses: %d\nsaid otherwise: %d\n", strings.Count(text, "left for another connection"), strings.Count(text, "\n")-strings.Count(text, "left for another connection"))
}
