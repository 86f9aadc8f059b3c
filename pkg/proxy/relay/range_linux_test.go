package relay

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy"
)

// ranged returns the Addresses of a namespace whose services have ranges; it skips where nftables cannot guard them.
func ranged(t *testing.T, ranges ...string) *netlinkAddresses {
	t.Helper()
	inNamespace(t)
	if _, err := command.New().Run(t.Context(), nil, "nft", "--version"); err != nil {
		t.Skipf("needs nft: %v", err)
	}
	return withRanges(t, ranges...)
}

// addressesHere is NewAddresses for a test whose thread is in a namespace of its own: a Patient runner starts programs from threads that are not.
func addressesHere(t *testing.T, name string) Addresses {
	t.Helper()
	a, err := NewAddresses(name)
	if err != nil {
		t.Fatal(err)
	}
	a.(*netlinkAddresses).guard.run = command.New()
	return a
}

func withRanges(t *testing.T, ranges ...string) *netlinkAddresses {
	t.Helper()
	a := addressesHere(t, "")
	var prefixes []netip.Prefix
	for _, text := range ranges {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	own := a.(*netlinkAddresses)
	own.SetRanges(prefixes)
	return own
}

// localRoutes lists the routes of ours.
func localRoutes(t *testing.T) string {
	t.Helper()
	have, _, err := (&localRanges{look: true}).list(nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for p, r := range have {
		out = append(out, fmt.Sprintf("%s from %s", p, r.Src))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func set4(t *testing.T, a *netlinkAddresses, want ...string) {
	t.Helper()
	if err := a.Set(t.Context(), addrs(want...)); err != nil {
		t.Fatal(err)
	}
}

// TestRanges: a range is one route, what is outside of it an address each, and each takes over from the other when ranges change. The next
// proxy finds what this one left.
func TestRanges(t *testing.T) {
	a := ranged(t, "10.96.0.0/12", "fd00:96::/112")
	for range 2 {
		set4(t, a, "10.96.0.1", "10.111.255.1", "fd00:96::1", "198.51.100.1")
		if got := localRoutes(t); got != "10.96.0.0/12 from 192.0.2.1, fd00:96::/112 from fd01::1" {
			t.Fatalf("routes %s", got)
		}
		if got := held(t, OwnInterface); got != "198.51.100.1" {
			t.Fatalf("addresses %s", got)
		}
	}
	a = withRanges(t, "10.96.0.0/16") // another proxy
	set4(t, a, "10.96.0.1", "10.111.255.1")
	if routes, single := localRoutes(t), held(t, OwnInterface); routes != "10.96.0.0/16 from 192.0.2.1" || single != "10.111.255.1" {
		t.Fatalf("after a change of ranges: routes %s, addresses %s", routes, single)
	}
	a.SetRanges(nil)
	set4(t, a, "10.96.0.1")
	if routes, single := localRoutes(t), held(t, OwnInterface); routes != "" || single != "10.96.0.1" {
		t.Fatalf("without ranges: routes %s, addresses %s", routes, single)
	}
	a.SetRanges([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
	set4(t, a, "10.96.0.1")
	if err := withRanges(t).Set(t.Context(), nil); err != nil { // as --cleanup does
		t.Fatal(err)
	}
	if routes, single := localRoutes(t), held(t, OwnInterface); routes != "" || single != "none" {
		t.Fatalf("cleaned up, but there is %s, %s", routes, single)
	}
	if out, err := command.New().Run(t.Context(), nil, "nft", "list", "tables"); err != nil || strings.Contains(string(out), guardTable) {
		t.Fatalf("cleaned up, but there is %s, %v", out, err)
	}
}

// TestRangeOfOthers: where somebody's route leads into the range the rest of it is left alone; one that refuses does not count.
func TestRangeOfOthers(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	eth, err := netlink.LinkByName("eth9")
	if err != nil {
		t.Fatal(err)
	}
	refuse := &netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: ipNet(netip.MustParsePrefix("10.96.0.0/12"))}
	theirs := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: ipNet(netip.MustParsePrefix("10.100.0.0/16"))}
	if err := netlink.RouteAdd(refuse); err != nil {
		t.Fatal(err)
	}
	hints, err := a.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set4(t, a, "10.96.0.1")
	if got := localRoutes(t); got != "10.96.0.0/12 from 192.0.2.1" {
		t.Fatalf("beside a route that refuses: %s", got)
	}
	if err := netlink.RouteAdd(theirs); err != nil {
		t.Fatal(err)
	}
	<-hints
	set4(t, a, "10.96.0.1")
	if routes, single := localRoutes(t), held(t, OwnInterface); routes != "" || single != "10.96.0.1" {
		t.Fatalf("beside a route of others: routes %s, addresses %s", routes, single)
	}
	if err := netlink.RouteDel(theirs); err != nil {
		t.Fatal(err)
	}
	<-hints
	set4(t, a, "10.96.0.1")
	ours, _, err := a.routes.list(nil)
	if err != nil || len(ours) != 1 {
		t.Fatal(ours, err)
	}
	for _, r := range ours { // somebody takes it away
		if err := netlink.RouteDel(&r); err != nil {
			t.Fatal(err)
		}
	}
	for localRoutes(t) == "" {
		<-hints
		set4(t, a, "10.96.0.1")
	}
}

// wildcards listens at port 7 of every address of both families, TCP and UDP.
func wildcards(t *testing.T) {
	t.Helper()
	for _, addr := range []string{"0.0.0.0:7", "[::]:7"} {
		network := map[bool]string{true: "4", false: "6"}[addr[0] == '0']
		l, err := net.Listen("tcp"+network, addr)
		if err != nil {
			t.Fatal(err)
		}
		p, err := net.ListenPacket("udp"+network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(); p.Close() })
		go func() {
			for buffer := make([]byte, 64); ; {
				_, from, err := p.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = p.WriteTo([]byte("wildcard"), from)
			}
		}()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("wildcard"))
				_ = c.Close()
			}
		}()
	}
}

// answers asks who is at an address: "refused", or what it says.
func answers(t *testing.T, network string, addr netip.AddrPort) string {
	t.Helper()
	c, err := net.DialTimeout(network, addr.String(), 2*time.Second)
	if err != nil {
		if refused(err) {
			return "refused"
		}
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err = c.Write([]byte("who")); err == nil && network == "tcp" {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	buffer := make([]byte, 64)
	n, err := c.Read(buffer)
	if err != nil && err != io.EOF {
		if refused(err) {
			return "refused"
		}
		return err.Error()
	}
	return string(buffer[:n])
}

// TestNobodyElseAnswers: a service address answers at the service's ports only, and what is no service's not at all, whatever programs of the
// host listen on all addresses; also where addresses are held one by one, and after somebody has flushed the rules.
func TestNobodyElseAnswers(t *testing.T) {
	endpoint := tcpServer(t, whoAndEcho)
	a := ranged(t, "10.96.0.0/12", "fd00:96::/112")
	wildcards(t)
	r := New(Config{Addresses: a, Clock: clock.RealClock{}})
	defer r.Close()
	table := &proxy.Table{Routes: []proxy.Route{
		route("x", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.1:80"), endpoint),
		route("y", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("[fd00:96::1]:80"), endpoint),
		route("z", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("198.51.100.1:80"), endpoint)}}
	check := func(when string) {
		t.Helper()
		if err := r.Sync(t.Context(), table, nil); err != nil {
			t.Fatal(err)
		}
		for _, one := range table.Routes {
			if who, err := ask(v1.ProtocolTCP, one.Front); err != nil || who != endpoint {
				t.Errorf("%s: %s answers %v, %v", when, one.Front, who, err)
			}
		}
		for _, addr := range []string{"10.96.0.1", "10.99.9.9", "fd00:96::1", "fd00:96::99", "198.51.100.1"} {
			if got := answersAt(t, addr); got != "refused, refused" {
				t.Errorf("%s: at %s: %s", when, addr, got)
			}
		}
		for _, addr := range []string{"192.0.2.1", "127.0.0.1", "::1"} {
			if got := answersAt(t, addr); got != "wildcard, wildcard" {
				t.Errorf("%s: the host's own %s: %s", when, addr, got)
			}
		}
	}
	check("by routes")
	if _, err := command.New().Run(t.Context(), nil, "nft", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	check("after a flush")
	a.SetRanges(nil)
	table.Routes[0].Front = netip.MustParseAddrPort("10.99.9.9:80")
	for _, name := range []string{"x", "y", "z"} { // one more, so that a change of single addresses is made
		changed := []proxy.ServiceName{{Namespace: "default", Name: name}}
		if err := r.Sync(t.Context(), table, changed); err != nil {
			t.Fatal(err)
		}
	}
	for addr, want := range map[string]string{"10.99.9.9": "refused, refused", "198.51.100.1": "refused, refused", "192.0.2.1": "wildcard, wildcard"} {
		if got := answersAt(t, addr); got != want {
			t.Errorf("by addresses: at %s: %s", addr, got)
		}
	}
}

func answersAt(t *testing.T, addr string) string {
	at := netip.AddrPortFrom(netip.MustParseAddr(addr), 7)
	return answers(t, "tcp", at) + ", " + answers(t, "udp", at)
}

// TestHostsOwnConnections come from the node's address.
func TestHostsOwnConnections(t *testing.T) {
	a := ranged(t, "10.96.0.0/12", "fd00:96::/112")
	set4(t, a, "10.96.0.1", "fd00:96::1")
	for front, want := range map[string]string{"10.96.0.1:80": "192.0.2.1", "[fd00:96::1]:80": "fd01::1"} {
		list, err := netlink.RouteGet(netip.MustParseAddrPort(front).Addr().AsSlice())
		if err != nil || list[0].Src.String() != want {
			t.Errorf("to %s: %v, %v; want the source %s", front, list, err, want)
		}
	}
}

// TestNoGuard: without nftables nothing is local but the services' addresses.
func TestNoGuard(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	a.guard.run = noPrograms{}
	for range 2 {
		set4(t, a, "10.96.0.1")
		if routes, single := localRoutes(t), held(t, OwnInterface); routes != "" || single != "10.96.0.1" {
			t.Fatalf("routes %s, addresses %s", routes, single)
		}
	}
}

type noPrograms struct{}

func (noPrograms) Run(context.Context, []byte, string, ...string) ([]byte, error) {
	return nil, command.ErrNotFound
}

func TestGuardChange(t *testing.T) {
	front := func(protocol v1.Protocol, text string) Front { return Front{protocol, netip.MustParseAddrPort(text)} }
	got := guardChange(&guarded{single: addrs("10.0.0.1", "10.0.0.2", "fd00::1"), fronts: []Front{front(v1.ProtocolTCP, "203.0.113.9:80")}},
		&guarded{single: addrs("10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"), fronts: []Front{front(v1.ProtocolUDP, "203.0.113.9:80"), front(v1.ProtocolTCP, "[fd01::9]:80")}, quietSingle: true},
		guardParts{inet: true, arp: true})
	want := `delete element inet winkube-proxy addresses4 { 10.0.0.1 }
delete element arp winkube-proxy addresses4 { 10.0.0.1 }
add element inet winkube-proxy addresses4 { 10.0.0.3 }
add element arp winkube-proxy addresses4 { 10.0.0.3 }
add element inet winkube-proxy addresses6 { fd00::2 }
delete element inet winkube-proxy fronts4 { 203.0.113.9 . tcp . 80 }
add element inet winkube-proxy fronts4 { 203.0.113.9 . udp . 80 }
add element inet winkube-proxy fronts6 { fd01::9 . tcp . 80 }
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
