package packets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/iptables/sctptest"
	"github.com/winkube/winkube/pkg/proxy"
)

// lab is a node with two pods on one bridge, another node with a pod, and a client on the nodes' network, each in a
// network namespace. The test's thread is on the node.
//
//	pod a 10.9.0.2 --+
//	                 br0 -- node 192.0.2.1 -- wire -- 192.0.2.3 other node, pod c 10.9.1.2
//	pod b 10.9.0.3 --+                          +-- 192.0.2.2 client
type lab struct {
	t                         *testing.T
	run                       *counted
	node, a, b, other, client netns.NsHandle
	family                    addresses
}

// addresses are those of one family.
type addresses struct {
	a, b, c              netip.Addr // pods
	node, client, bridge netip.Addr
	pods                 netip.Prefix
	service, external    netip.Addr
	unspecified          netip.Addr
}

var (
	family4 = addresses{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("10.9.0.3"), netip.MustParseAddr("10.9.1.2"), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("10.9.0.1"), netip.MustParsePrefix("10.9.0.0/24"), netip.MustParseAddr("10.96.0.10"),
		netip.MustParseAddr("203.0.113.9"), netip.IPv4Unspecified()}
	family6 = addresses{netip.MustParseAddr("fd09::2"), netip.MustParseAddr("fd09::3"), netip.MustParseAddr("fd09:0:0:1::2"), netip.MustParseAddr("fd01::1"),
		netip.MustParseAddr("fd01::2"), netip.MustParseAddr("fd09::1"), netip.MustParsePrefix("fd09::/64"), netip.MustParseAddr("fd96::10"),
		netip.MustParseAddr("fd03::9"), netip.IPv6Unspecified()}
)

// counted counts programs that write.
type counted struct {
	command.Runner
	runs, writes int
	fail         error
}

func (c *counted) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	c.runs++
	if strings.HasSuffix(name, "-restore") {
		c.writes++
		if c.fail != nil {
			return nil, c.fail
		}
	}
	return c.Runner.Run(ctx, stdin, name, args...)
}

func ip(lines string) error {
	_, err := command.New().Run(context.Background(), []byte(lines), "ip", "-batch", "-")
	return err
}

func setting(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644) // of the thread's namespace
}

// within runs do in a namespace, on a thread that ends afterwards.
func within(space netns.NsHandle, do func() error) error {
	var err error
	var running sync.WaitGroup
	running.Go(func() {
		runtime.LockOSThread() // never unlocked, so that the thread is not reused
		if err = netns.Set(space); err == nil {
			err = do()
		}
	})
	running.Wait()
	return err
}

// foreign are rules of others on the node: Docker's, the kubelet's for its pods, and what a kube-proxy left behind.
const foreign = `*nat
:DOCKER - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -p sctp -j DNAT --to-destination 10.9.0.99:9
-A DOCKER -p sctp -j DNAT --to-destination 10.9.0.99:9
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
:DOCKER-FORWARD - [0:0]
:WINKUBE-FORWARD - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j WINKUBE-FORWARD
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-FORWARD -p sctp -j DROP
-A WINKUBE-FORWARD -s 10.9.0.0/24 -j ACCEPT
-A WINKUBE-FORWARD -d 10.9.0.0/24 -j ACCEPT
COMMIT
`

func newLab(t *testing.T, family addresses) *lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	l := &lab{t: t, run: &counted{Runner: command.New()}, family: family}
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
	var wire netns.NsHandle
	for _, space := range []*netns.NsHandle{&wire, &l.a, &l.b, &l.other, &l.client, &l.node} {
		if *space, err = netns.New(); err != nil {
			t.Skipf("cannot make a network namespace here: %v", err)
		}
		t.Cleanup(func() { space.Close() })
		l.must(setting("ipv6/conf/default/accept_dad", "0"))
	}
	l.links(wire)
	l.must(errors.Join(setting("ipv4/icmp_ratelimit", "0"), setting("ipv6/icmp/ratelimit", "0"))) // a client is refused more often here
	l.must(ip("addr add 192.0.2.1/24 dev eth0\naddr add fd01::1/64 dev eth0 nodad\naddr add 10.9.0.1/24 dev br0\naddr add fd09::1/64 dev br0 nodad\n" +
		"route add 10.9.1.0/24 via 192.0.2.3\nroute add fd09:0:0:1::/64 via fd01::3\nroute add local 10.96.0.0/12 dev lo src 192.0.2.1\nroute add local fd96::/112 dev lo src fd01::1\n" +
		"route add default via 192.0.2.3\nroute add default via fd01::3"))
	l.restore("iptables-restore", foreign)
	l.restore("ip6tables-restore", strings.NewReplacer("10.9.0.99:9", "[fd09::99]:9", "10.9.0.0/24", "fd09::/64").Replace(foreign))
	return l
}

func (l *lab) links(wire netns.NsHandle) {
	l.t.Helper()
	add := func(name string, to netns.NsHandle, master string) error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(to)}); err != nil {
			return err
		}
		return ip("link set " + name + " master " + master + "\nlink set " + name + " up")
	}
	forward := func() error {
		return errors.Join(setting("ipv4/conf/all/rp_filter", "1"), setting("ipv4/ip_forward", "1"), setting("ipv6/conf/all/forwarding", "1"))
	}
	l.must(errors.Join(ip("link set lo up\nlink add br0 type bridge\nlink set br0 up"), add("pod0", l.a, "br0"), add("pod1", l.b, "br0"), forward()))
	l.in(wire, func() error {
		return errors.Join(ip("link add br0 type bridge\nlink set br0 up"), add("port0", l.node, "br0"), add("port1", l.client, "br0"), add("port2", l.other, "br0"))
	})
	l.must(ip("link set eth0 up"))
	pod := func(v4, v6 string) func() error {
		return func() error {
			return ip("link set lo up\nlink set eth0 up\naddr add " + v4 + "/24 dev eth0\naddr add " + v6 + "/64 dev eth0 nodad\nroute add default via 10.9.0.1\nroute add default via fd09::1")
		}
	}
	l.in(l.a, pod("10.9.0.2", "fd09::2"))
	l.in(l.b, pod("10.9.0.3", "fd09::3"))
	l.in(l.other, func() error {
		return errors.Join(forward(), ip("link set lo up\nlink set eth0 up\naddr add 192.0.2.3/24 dev eth0\naddr add fd01::3/64 dev eth0 nodad\naddr add 10.9.1.2/32 dev lo\naddr add fd09:0:0:1::2/128 dev lo nodad\n"+
			"route add 10.9.0.0/24 via 192.0.2.1\nroute add fd09::/64 via fd01::1"))
	})
	l.in(l.client, func() error {
		return ip("link set lo up\nlink set eth0 up\naddr add 192.0.2.2/24 dev eth0\naddr add fd01::2/64 dev eth0 nodad\nroute add default via 192.0.2.1\nroute add default via fd01::1")
	})
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) in(space netns.NsHandle, do func() error) {
	l.t.Helper()
	l.must(within(space, do))
}

func (l *lab) restore(tool, script string) {
	l.t.Helper()
	_, err := command.New().Run(l.t.Context(), []byte(script), tool, "--noflush")
	l.must(err)
}

// saved returns the rules of both families.
func (l *lab) saved() string {
	l.t.Helper()
	var out strings.Builder
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		text, err := command.New().Run(l.t.Context(), nil, tool)
		l.must(err)
		out.Write(text)
	}
	return out.String()
}

// bridged sets whether frames that pass a bridge meet the packet filter (package br_netfilter). If so, a pod meets itself
// only where its port may send back, as on the kubelet's own interfaces.
func (l *lab) bridged(on bool) {
	l.t.Helper()
	value := map[bool]string{true: "1", false: "0"}[on]
	for _, name := range []string{"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if err := setting(name, value); err != nil && (on || !errors.Is(err, os.ErrNotExist)) {
			l.t.Skipf("cannot set br_netfilter: %v", err)
		}
	}
	for _, name := range []string{"pod0", "pod1"} {
		port, err := netlink.LinkByName(name)
		l.must(err)
		l.must(netlink.LinkSetHairpin(port, on))
	}
}

// Host implements Config.Addresses.
func (l *lab) Host() ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6LinkLocalAllNodes(), family4.node, family6.node, family4.bridge, family6.bridge}, nil
}

func (l *lab) balancer() *Balancer {
	return New(Config{Run: l.run, Host: NewHost(), Addresses: l})
}

// serve starts the pods' servers at port 9090.
func (l *lab) serve() {
	f := l.family
	for _, pod := range []struct {
		name  string
		space netns.NsHandle
		addr  netip.Addr
	}{{"a", l.a, f.a}, {"b", l.b, f.b}, {"c", l.other, f.c}} {
		l.in(pod.space, func() error {
			sctptest.Serve(l.t, pod.name, netip.AddrPortFrom(pod.addr, 9090))
			return nil
		})
	}
}

// endpoints returns the pods with names; those on this node are local.
func (f *addresses) endpoints(names string) (out []proxy.Endpoint) {
	for _, name := range strings.Fields(names) {
		addr := map[string]netip.Addr{"a": f.a, "b": f.b, "c": f.c}[name]
		out = append(out, proxy.Endpoint{Addr: netip.AddrPortFrom(addr, 9090), Local: name != "c"})
	}
	return out
}

// route returns a Route of Service x/name.
func (f *addresses) route(name string, kind proxy.Kind, endpoints string) proxy.Route {
	front := map[proxy.Kind]netip.AddrPort{proxy.ClusterIP: netip.AddrPortFrom(f.service, 80), proxy.NodePort: netip.AddrPortFrom(f.unspecified, 30080),
		proxy.LoadBalancer: netip.AddrPortFrom(f.external, 80), proxy.ExternalIP: netip.AddrPortFrom(f.external, 81)}[kind]
	return proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "x", Name: name}}, Kind: kind, Protocol: v1.ProtocolSCTP, Front: front,
		Backends: f.endpoints(endpoints)}
}

// table returns a Table of the Routes.
func (f *addresses) table(routes ...proxy.Route) *proxy.Table {
	slices.SortStableFunc(routes, func(x, y proxy.Route) int { return strings.Compare(x.Service.Name, y.Service.Name) })
	return &proxy.Table{Routes: routes, PodRanges: []netip.Prefix{family4.pods, family6.pods}}
}

// meets opens an association from a namespace, and returns "NAME sees ADDRESS", "refused" or "silent".
func (l *lab) meets(space netns.NsHandle, to netip.AddrPort) (got string) {
	l.t.Helper()
	l.in(space, func() error {
		a, err := sctptest.Dial(to)
		switch {
		case errors.Is(err, sctptest.ErrRefused):
			got = "refused"
		case errors.Is(err, sctptest.ErrSilent):
			got = "silent"
		case err != nil:
			got = err.Error()
		default:
			got = fmt.Sprintf("%s sees %s", a.Name, a.Client)
			a.Close()
		}
		return nil
	})
	return got
}
