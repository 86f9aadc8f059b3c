package epoll

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// TestPolicyCost prints the cost of the rules for ports for a packet that this host forwards, and for a new connection
// to a front. It does not assert times.
func TestPolicyCost(t *testing.T) {
	if os.Getenv("WINKUBE_COST") == "" {
		t.Skip("set WINKUBE_COST=1 for figures")
	}
	n := newNeighbours(t)
	n.Balanced(t)
	a := withRanges(t)
	r := n.here(t, withLookup, a)
	mustServe(t, r, relaytest.Route("x", proxy.ExternalIP, v1.ProtocolTCP, netip.MustParseAddrPort(nstest.Taken4+":80"), relaytest.TCPServer(t, relaytest.WhoAndEcho)))
	if err := nstest.IP("route add 198.51.100.0/24 dev pod0\nneigh add 198.51.100.7 lladdr 02:00:00:00:00:07 dev pod0\nroute add 198.51.101.0/24 dev pod0\nneigh add 198.51.101.7 lladdr 02:00:00:00:00:07 dev pod0"); err != nil {
		t.Fatal(err)
	}
	nstest.Within(t, n.Client, func() error { return nstest.IP("route add 198.51.100.0/23 via 192.0.2.1") })
	best := func(count int, one func() error) (least time.Duration) {
		nstest.Within(t, n.Client, func() error {
			for range 5 {
				start := time.Now()
				for range count {
					if err := one(); err != nil {
						return err
					}
				}
				if took := time.Since(start) / time.Duration(count); least == 0 || took < least {
					least = took
				}
			}
			return nil
		})
		return least
	}
	measure := func(what string) {
		forward := func(addr string) time.Duration {
			var c net.PacketConn
			nstest.Within(t, n.Client, func() (err error) { c, err = net.ListenPacket("udp4", "192.0.2.2:0"); return err })
			defer c.Close()
			to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr))
			return best(20000, func() error { _, err := c.WriteTo([]byte("x"), to); return err })
		}
		far, near := forward("198.51.100.7:9"), forward("198.51.101.7:9")
		connect := best(300, func() error {
			c, err := net.Dial("tcp4", nstest.Taken4+":80")
			if err == nil {
				_ = c.(*net.TCPConn).SetLinger(0)
				err = c.Close()
			}
			return err
		})
		t.Logf("%-40s forwarded %5d ns, near the fronts %5d ns, connection %6d ns", what, far.Nanoseconds(), near.Nanoseconds(), connect.Nanoseconds())
	}
	one := relay.Port{Protocol: v1.ProtocolTCP, Addr: netip.MustParseAddrPort(nstest.Taken4 + ":80")}
	for _, shape := range []struct {
		name string
		nth  func(i int) relay.Port
	}{
		{"addresses with one port", func(i int) relay.Port {
			return relay.Port{Protocol: v1.ProtocolTCP, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 101, byte(i)}), 80)}
		}},
		{"ports of one address", func(i int) relay.Port {
			return relay.Port{Protocol: v1.ProtocolTCP, Addr: netip.AddrPortFrom(netip.MustParseAddr("198.51.101.7"), uint16(10000+i))}
		}},
	} {
		for _, count := range []int{0, 1, 100, 1000} {
			fronts := []relay.Port{one}
			for i := range count {
				fronts = append(fronts, shape.nth(i))
			}
			if shape.name[0] == 'a' && count == 1000 {
				for i := range 750 {
					fronts[i+251].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 80)
				}
			}
			start := time.Now()
			hold(t, a, relay.Local{Ports: fronts})
			set := time.Since(start)
			start = time.Now()
			hold(t, a, relay.Local{Ports: fronts[:max(1, len(fronts)-1)]})
			t.Logf("set in %s, one less in %s", set.Round(time.Millisecond), time.Since(start).Round(100*time.Microsecond))
			measure(shape.name + map[int]string{0: ", none", 1: ", 1", 100: ", 100", 1000: ", 1000"}[count])
		}
	}
}
