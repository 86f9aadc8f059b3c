package epoll

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// TestDeafToFar: a front without an endpoint on this node (externalTrafficPolicy Local) serves this host's programs, and
// this node's pods as soon as their range is known; to a client elsewhere it says nothing, whatever its kind.
func TestDeafToFar(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func(*relay.Shared) *plane) {
		n := newNeighbours(t)
		n.Balanced(t)
		tcp, udp := relaytest.TCPServer(t, relaytest.WhoAndEcho), relaytest.UDPServer(t)
		r := n.here(t, newPlane, withRanges(t, "10.96.0.0/12"))
		table := &proxy.Table{}
		for i, front := range []struct {
			kind proxy.Kind
			addr string
		}{{proxy.ExternalIP, nstest.Taken4 + ":80"}, {proxy.LoadBalancer, "[" + nstest.Taken6 + "]:80"}, {proxy.ExternalIP, "10.96.0.9:80"}, {proxy.NodePort, "0.0.0.0:30080"}, {proxy.NodePort, "[::]:30080"}} {
			for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
				one := relaytest.Route(fmt.Sprintf("s%d-%s", i, strings.ToLower(string(protocol))), front.kind, protocol, netip.MustParseAddrPort(front.addr))
				one.Drop, one.Near = true, []proxy.Endpoint{{Addr: map[v1.Protocol]netip.AddrPort{v1.ProtocolTCP: tcp, v1.ProtocolUDP: udp}[protocol]}}
				table.Routes = append(table.Routes, one)
			}
		}
		sync := func() {
			t.Helper()
			if err := r.Sync(t.Context(), table, []proxy.ServiceName{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Sync(t.Context(), table, nil); err != nil {
			t.Fatal(err)
		}
		external := []string{nstest.Taken4 + ":80", "[" + nstest.Taken6 + "]:80"}
		nodePorts := []string{"192.0.2.1:30080", "[fd01::1]:30080"}
		served := func(who string, front string) {
			t.Helper()
			addr := netip.MustParseAddrPort(front)
			for protocol, want := range map[v1.Protocol]netip.AddrPort{v1.ProtocolTCP: tcp, v1.ProtocolUDP: udp} {
				if got, err := relaytest.Ask(protocol, addr); err != nil || got != want {
					t.Errorf("%s at %s %s meets %s, %v", who, protocol, front, got, err)
				}
			}
		}
		here := append(append([]string{"10.96.0.9:80", "127.0.0.1:30080", "[::1]:30080"}, external...), nodePorts...)
		away := append(append([]string(nil), external...), nodePorts...)
		for _, front := range here {
			served("a program of this host", front)
		}
		ignored := func(when string) {
			t.Helper()
			nstest.Within(t, n.Client, func() error {
				var waiting []unanswered
				for _, front := range away {
					addr := netip.MustParseAddrPort(front)
					waiting = append(waiting, sendSYN(t, addr))
					if got := meetUDP(t, addr); got != "silence" {
						t.Errorf("%s: at UDP %s a client elsewhere meets %s", when, front, got)
					}
				}
				for _, u := range waiting {
					u.sentAgain(t)
				}
				return nil
			})
		}
		ignored("at first")
		table.PodRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.2/31"), netip.MustParsePrefix("fd01::/36")}
		sync()
		nstest.Within(t, n.Client, func() error {
			for _, front := range away {
				served("a pod of this node", front)
			}
			return nil
		})
		table.PodRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.4/30"), netip.MustParsePrefix("fd01:0:0:1::/64")}
		sync()
		ignored("when the range is another")
		for _, front := range here {
			served("a program of this host, later", front)
		}
	})
}

// TestTooManyRanges: the kernel's limit is an error that tells it.
func TestTooManyRanges(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var near []netip.Prefix
	for i := range maxFilter / 4 {
		near = append(near, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 32))
	}
	if err := silence(fd, relay.DeafToFar, near[:maxFilter/4-2]); err != nil {
		t.Errorf("as many as the kernel takes: %v", err)
	}
	if err := silence(fd, relay.DeafToFar, near); err == nil || errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "want at most 4096") {
		t.Errorf("too many: %v", err)
	}
}
