package epoll

import (
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
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// TestSourcePortsUsedUp: if the host has no source port left, the client is refused immediately, and an Event and a
// metric report it. It runs this program again in a network namespace with a small range of ports, because the loops'
// threads do not follow a test into one.
func TestSourcePortsUsedUp(t *testing.T) {
	const inside = "WINKUBE_FEW_PORTS"
	if os.Getenv(inside) == "" {
		if os.Getuid() != 0 {
			t.Skip("needs root for its own network namespace")
		}
		t.Setenv(inside, "1")
		out, err := command.New().Run(t.Context(), nil, "unshare", "--net", os.Args[0], "-test.run=^TestSourcePortsUsedUp$", "-test.v")
		if err != nil || !strings.Contains(string(out), "--- PASS: TestSourcePortsUsedUp") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const ports, own = 20, 5 // own: connections of the host itself to the endpoint, which the relay does not know
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "40000 %d", 40000+ports-1), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 10)
	r := relay.New(New(runtime.GOMAXPROCS(0)), relay.Config{Addresses: relaytest.NewAddresses(), Clock: clock.RealClock{}, ClientShare: 100, Warn: func(service proxy.ServiceName, reason, _ string) { heard <- service.String() + " " + reason }})
	defer r.Close()
	front := netip.MustParseAddrPort("127.0.0.2:81")
	endpoint := relaytest.TCPServer(t, relaytest.WhoAndEcho)
	for range own {
		defer relaytest.DialFront(t, endpoint).Close()
	}
	table := &proxy.Table{Routes: []proxy.Route{relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, front, endpoint)}}
	if err := r.Sync(t.Context(), table, nil); err != nil {
		t.Fatal(err)
	}
	failed := false
	for i := 0; !failed; i++ {
		client := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3), Port: 1024 + i}, Timeout: time.Minute}
		c, err := client.Dial("tcp", front.String())
		if err == nil {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err = io.ReadFull(c, make([]byte, 1))
		} else if !errors.Is(err, syscall.ECONNRESET) { // the reset may arrive before connect returns
			t.Fatal(err)
		}
		if failed = err != nil; failed && i < ports-1-own || !failed && i == ports-own || os.IsTimeout(err) { // the endpoint may use one of the ports
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if got := <-heard; got != "a/x SourcePortsNearlyUsedUp" {
		t.Errorf("heard %q", got)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.Collectors()...)
	if relaytest.MetricOf(t, registry, "kubeproxy_relay_source_ports_exhausted_total", "") == 0 {
		t.Error("the metric counts none")
	}
}
