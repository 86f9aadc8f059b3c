package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
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
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

// TestPortsRestored: the setting of TIME_WAIT is given back where it is still ours, once, and by whichever proxy cleans up.
func TestPortsRestored(t *testing.T) {
	inNamespace(t)
	setting := func() string {
		text, err := os.ReadFile(reusePort)
		if err != nil {
			t.Skipf("this kernel has no such setting: %v", err)
		}
		return strings.TrimSpace(string(text))
	}
	set := func(value string) {
		if err := os.WriteFile(reusePort, []byte(value), 0o644); err != nil {
			t.Skipf("cannot change settings here: %v", err)
		}
	}
	t.Cleanup(func() { _ = os.Remove(settingNote()) })
	for _, c := range []struct{ before, meanwhile, used, after string }{
		{"2", "", "1", "2"},
		{"2", "0", "1", "0"}, // somebody else has decided since
		{"1", "", "1", "1"},  // somebody else has decided before
		{"0", "", "0", "0"},
	} {
		set(c.before)
		if ports := preparePorts(); ports <= 0 || setting() != c.used {
			t.Errorf("%+v: %d ports, setting %s", c, ports, setting())
		}
		if c.meanwhile != "" {
			set(c.meanwhile)
		}
		for range 2 {
			if err := RestorePorts(); err != nil || setting() != c.after {
				t.Errorf("%+v: cleaned up, the setting is %s, %v", c, setting(), err)
			}
		}
	}
}

// TestSourcePortsUsedUp: when the host has no source port left the client is told at once, and users hear of it by an Event and a metric. It
// runs this program again in a network namespace whose range of ports is small, since threads of the loops do not follow a test into one.
func TestSourcePortsUsedUp(t *testing.T) {
	const inside = "WINKUBE_FEW_PORTS"
	if os.Getenv(inside) == "" {
		if os.Getuid() != 0 {
			t.Skip("needs root for a network namespace of its own")
		}
		t.Setenv(inside, "1")
		out, err := command.New().Run(t.Context(), nil, "unshare", "--net", os.Args[0], "-test.run=^TestSourcePortsUsedUp$", "-test.v")
		if err != nil || !strings.Contains(string(out), "--- PASS: TestSourcePortsUsedUp") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const ports, own = 20, 5 // own: connections of the host itself to the endpoint, of which the relay does not know
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = os.WriteFile(portRange, fmt.Appendf(nil, "40000 %d", 40000+ports-1), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(settingNote()) })
	heard := make(chan string, 10)
	r := New(Config{Addresses: proxytest.NewAddresses(), Clock: clock.RealClock{}, ClientShare: 100, Warn: func(service proxy.ServiceName, reason, _ string) { heard <- service.String() + " " + reason }})
	defer r.Close()
	front := netip.MustParseAddrPort("127.0.0.2:81")
	endpoint := tcpServer(t, whoAndEcho)
	for range own {
		defer dialFront(t, endpoint).Close()
	}
	table := &proxy.Table{Routes: []proxy.Route{route("x", proxy.ClusterIP, v1.ProtocolTCP, front, endpoint)}}
	if err := r.Sync(t.Context(), table, nil); err != nil {
		t.Fatal(err)
	}
	failed := false
	for i := 0; !failed; i++ {
		client := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3), Port: 1024 + i}, Timeout: 5 * time.Second}
		c, err := client.Dial("tcp", front.String())
		if err == nil {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			_, err = io.ReadFull(c, make([]byte, 1))
		} else if !errors.Is(err, syscall.ECONNRESET) { // the reset may come before connect has returned
			t.Fatal(err)
		}
		if failed = err != nil; failed && i < ports-1-own || !failed && i == ports-own || os.IsTimeout(err) { // the endpoint may have one of the ports
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if got := <-heard; got != "a/x SourcePortsNearlyUsedUp" {
		t.Errorf("heard %q", got)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "kubeproxy_relay_source_ports_exhausted_total" && f.GetMetric()[0].GetCounter().GetValue() > 0 {
			return
		}
	}
	t.Error("the metric counts none")
}
