package relay

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
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
)

// inNamespace puts the test's goroutine into a network namespace of its own with an interface eth9 that has 192.0.2.1 and fd01::1.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace of its own")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	space, err := netns.New()
	if err != nil {
		runtime.UnlockOSThread()
		t.Skipf("cannot make a network namespace here: %v", err)
	}
	t.Cleanup(func() {
		_ = space.Close()
		if err := netns.Set(before); err == nil { // otherwise the thread ends with its goroutine
			runtime.UnlockOSThread()
		}
		_ = before.Close()
	})
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth9"}, PeerName: "peer9"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lo", "peer9", "eth9"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
	}
	addForeign(t, "eth9", "192.0.2.1/24")
	addForeign(t, "eth9", "fd01::1/64")
}

func addForeign(t *testing.T, name, text string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	addr.Flags = unix.IFA_F_NODAD // do not wait for others to object
	if err := netlink.AddrAdd(link, addr); err != nil {
		t.Fatal(err)
	}
}

// held lists the addresses of an interface but link-local ones; "none" when it is not there.
func held(t *testing.T, name string) string {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		return "none"
	}
	have, err := listAddresses(link.Attrs().Index)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for addr := range have {
		if !addr.IsLinkLocalUnicast() {
			out = append(out, addr.String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func TestNetlinkAddresses(t *testing.T) {
	for _, c := range []struct{ name, at, base string }{{"", OwnInterface, ""}, {"eth9", "eth9", "192.0.2.1 fd01::1"}} {
		t.Run("on "+c.at, func(t *testing.T) {
			inNamespace(t)
			a := addressesHere(t, c.name)
			for _, want := range [][]netip.Addr{addrs("10.96.0.1"), addrs("10.96.0.1", "10.96.0.10", "fd00:96::1"), addrs("fd00:96::1"), addrs("10.96.0.2")} {
				for range 2 {
					if err := a.Set(t.Context(), want); err != nil {
						t.Fatal(err)
					}
				}
				all := append(addrs(strings.Fields(c.base)...), want...)
				var texts []string
				for _, addr := range all {
					texts = append(texts, addr.String())
				}
				slices.Sort(texts)
				if got := held(t, c.at); got != strings.Join(texts, " ") {
					t.Fatalf("after Set(%v) the interface has %s", want, got)
				}
				host, err := a.Host()
				if err != nil || slices.Contains(host, want[0]) || !slices.Contains(host, netip.MustParseAddr("192.0.2.1")) || !slices.Contains(host, netip.MustParseAddr("127.0.0.1")) {
					t.Fatalf("the host has %v, %v", host, err)
				}
			}
			// The next proxy, after this one was killed, knows what is ours.
			next := addressesHere(t, c.name)
			if err := next.Set(t.Context(), addrs("10.96.0.3")); err != nil {
				t.Fatal(err)
			}
			if got := held(t, c.at); strings.Contains(got, "10.96.0.2") || !strings.Contains(got, "10.96.0.3") {
				t.Fatalf("the next proxy left %s", got)
			}
			if err := next.Set(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if got := held(t, c.at); got != c.base && got != "none" || c.name == "" && got != "none" {
				t.Fatalf("cleaned up, but there is %s", got)
			}
		})
	}
}

// TestForeignAddressesStay: what somebody else put on the named interface is never removed, even when a service has that address for a while.
func TestForeignAddressesStay(t *testing.T) {
	inNamespace(t)
	addForeign(t, "eth9", "10.96.0.7/32")
	a := addressesHere(t, "eth9")
	for _, want := range [][]netip.Addr{addrs("10.96.0.7", "10.96.0.8"), nil} {
		if err := a.Set(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	if got := held(t, "eth9"); got != "10.96.0.7 192.0.2.1 fd01::1" {
		t.Fatal(got)
	}
	if _, err := NewAddresses("eth77"); err == nil || !strings.Contains(err.Error(), "eth77") {
		t.Fatalf("an interface that does not exist: %v", err)
	}
}

// TestNeverASource: the host does not begin to use service addresses as its own.
func TestNeverASource(t *testing.T) {
	inNamespace(t)
	a := addressesHere(t, "eth9")
	if err := a.Set(t.Context(), addrs("192.0.2.200", "fd01::200")); err != nil {
		t.Fatal(err)
	}
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
	inNamespace(t)
	a := addressesHere(t, "")
	hints, err := a.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]netip.Addr{addrs("10.96.0.1", "10.96.0.2"), addrs("10.96.0.2")} {
		if err := a.Set(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	own := a.(*netlinkAddresses)
	if !own.expected(netip.MustParseAddr("10.96.0.2"), true) || own.expected(netip.MustParseAddr("192.0.2.3"), true) {
		t.Error("what we add is not told from what others add")
	}
	addForeign(t, "eth9", "192.0.2.3/32")
	<-hints
	link, err := netlink.LinkByName(OwnInterface)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	<-hints
	if err := a.Set(t.Context(), addrs("10.96.0.2")); err != nil {
		t.Fatal(err)
	}
	if got := held(t, OwnInterface); got != "10.96.0.2" {
		t.Fatal(got)
	}
}

// TestServesServiceAddress is the whole way on a real service address, also after a proxy that left without a word.
func TestServesServiceAddress(t *testing.T) {
	endpoint := tcpServer(t, whoAndEcho)
	inNamespace(t)
	a := addressesHere(t, "")
	routes := []proxy.Route{
		route("x", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.1:80"), endpoint),
		route("y", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("[fd00:96::1]:80"), endpoint)} // the relay does not mind the family
	for range 2 {
		r := New(Config{Addresses: a, Clock: clock.RealClock{}})
		if err := r.Sync(t.Context(), &proxy.Table{Routes: routes}, nil); err != nil {
			t.Fatal(err)
		}
		for _, one := range routes {
			if who, err := ask(v1.ProtocolTCP, one.Front); err != nil || who != endpoint {
				t.Errorf("%s answers %v, %v", one.Front, who, err)
			}
		}
		r.Close() // leaves the addresses
	}
	if got := held(t, OwnInterface); got != "10.96.0.1 fd00:96::1" {
		t.Errorf("after the proxy ended the interface has %s", got)
	}
	if err := a.Set(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkSet(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root for a network namespace of its own")
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
		a, err := NewAddresses("")
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if err := a.Set(b.Context(), want); err != nil {
			b.Fatal(err)
		}
		cold := time.Now()
		if err := a.Set(b.Context(), want[1:]); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(cold.Sub(start).Milliseconds()), "cold-ms")
		b.ReportMetric(float64(time.Since(cold).Milliseconds()), "one-ms")
		if err := a.Set(b.Context(), nil); err != nil {
			b.Fatal(err)
		}
	}
}
