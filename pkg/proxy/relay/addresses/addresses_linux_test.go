package addresses

import (
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
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

func TestNetlinkAddresses(t *testing.T) {
	for _, c := range []struct{ name, at, base string }{{"", OwnInterface, ""}, {"eth9", "eth9", "192.0.2.1 fd01::1"}} {
		t.Run("on "+c.at, func(t *testing.T) {
			nstest.In(t)
			a := addressesHere(t, c.name)
			for _, want := range [][]string{{"10.96.0.1"}, {"10.96.0.1", "10.96.0.10", "fd00:96::1"}, {"fd00:96::1"}, {"10.96.0.2"}} {
				for range 2 {
					hold(t, a, want...)
				}
				texts := append(strings.Fields(c.base), want...)
				slices.Sort(texts)
				if got := nstest.Held(t, c.at); got != strings.Join(texts, " ") {
					t.Fatalf("after Set(%v) the interface has %s", want, got)
				}
				host, err := a.Host()
				if err != nil || slices.Contains(host, netip.MustParseAddr(want[0])) || !slices.Contains(host, netip.MustParseAddr("192.0.2.1")) || !slices.Contains(host, netip.MustParseAddr("127.0.0.1")) {
					t.Fatalf("the host has %v, %v", host, err)
				}
			}
			// The next proxy, after this one was killed, recognizes our addresses.
			next := addressesHere(t, c.name)
			hold(t, next, "10.96.0.3")
			if got := nstest.Held(t, c.at); strings.Contains(got, "10.96.0.2") || !strings.Contains(got, "10.96.0.3") {
				t.Fatalf("the next proxy left %s", got)
			}
			hold(t, next)
			if got := nstest.Held(t, c.at); got != c.base && got != "none" || c.name == "" && got != "none" {
				t.Fatalf("cleaned up, but there is %s", got)
			}
		})
	}
}

// TestForeignAddressesStay: addresses that another program added to the named interface are never removed, even if a
// Service has the same address for a while.
func TestForeignAddressesStay(t *testing.T) {
	nstest.In(t)
	nstest.AddForeign(t, "eth9", "10.96.0.7/32")
	a := addressesHere(t, "eth9")
	hold(t, a, "10.96.0.7", "10.96.0.8")
	hold(t, a)
	if got := nstest.Held(t, "eth9"); got != "10.96.0.7 192.0.2.1 fd01::1" {
		t.Fatal(got)
	}
	if _, err := New("eth77"); err == nil || !strings.Contains(err.Error(), "eth77") {
		t.Fatalf("an interface that does not exist: %v", err)
	}
}

// TestNeverASource: the host never chooses service addresses as source addresses.
func TestNeverASource(t *testing.T) {
	nstest.In(t)
	a := addressesHere(t, "eth9")
	hold(t, a, "192.0.2.200", "fd01::200")
	for to, want := range map[string]string{"192.0.2.77": "192.0.2.1", "fd01::77": "fd01::1"} {
		list, err := netlink.RouteGet(net.ParseIP(to))
		if err != nil {
			t.Fatal(err)
		}
		if got := list[0].Src.String(); got != want {
			t.Errorf("to %s the host uses %s, want %s", to, got, want)
		}
	}
}

func TestChangesHint(t *testing.T) {
	nstest.In(t)
	a := addressesHere(t, "")
	hints, err := a.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hold(t, a, "10.96.0.1", "10.96.0.2")
	hold(t, a, "10.96.0.2")
	if !a.expected(netip.MustParseAddr("10.96.0.2"), true) || a.expected(netip.MustParseAddr("192.0.2.3"), true) {
		t.Error("what we add is not told from what others add")
	}
	nstest.AddForeign(t, "eth9", "192.0.2.3/32")
	<-hints
	link, err := netlink.LinkByName(OwnInterface)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	<-hints
	hold(t, a, "10.96.0.2")
	if got := nstest.Held(t, OwnInterface); got != "10.96.0.2" {
		t.Fatal(got)
	}
}

// TestServesServiceAddress tests the complete path with a real service address, also after a proxy that left its
// addresses.
func TestServesServiceAddress(t *testing.T) {
	endpoint := relaytest.TCPServer(t, relaytest.WhoAndEcho)
	nstest.In(t)
	a := addressesHere(t, "")
	routes := []proxy.Route{
		relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.1:80"), endpoint),
		relaytest.Route("y", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("[fd00:96::1]:80"), endpoint)} // the relay accepts different families
	for range 2 {
		r := relay.New(relay.Goroutines, relay.Config{Addresses: a, Clock: clock.RealClock{}})
		if err := r.Sync(t.Context(), &proxy.Table{Routes: routes}, nil); err != nil {
			t.Fatal(err)
		}
		for _, one := range routes {
			if who, err := relaytest.Ask(v1.ProtocolTCP, one.Front); err != nil || who != endpoint {
				t.Errorf("%s answers %v, %v", one.Front, who, err)
			}
		}
		r.Close() // leaves the addresses
	}
	if got := nstest.Held(t, OwnInterface); got != "10.96.0.1 fd00:96::1" {
		t.Errorf("after the proxy ended the interface has %s", got)
	}
	hold(t, a)
}

func BenchmarkSet(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root for its own network namespace")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if _, err := netns.New(); err != nil {
		b.Fatal(err)
	}
	var want []netip.Addr
	for i := range 10000 {
		want = append(want, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}))
	}
	for b.Loop() {
		a, err := New("")
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if _, err := a.Set(b.Context(), relay.Local{Addresses: want}); err != nil {
			b.Fatal(err)
		}
		cold := time.Now()
		if _, err := a.Set(b.Context(), relay.Local{Addresses: want[1:]}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(cold.Sub(start).Milliseconds()), "cold-ms")
		b.ReportMetric(float64(time.Since(cold).Milliseconds()), "one-ms")
		if _, err := a.Set(b.Context(), relay.Local{}); err != nil {
			b.Fatal(err)
		}
	}
}
