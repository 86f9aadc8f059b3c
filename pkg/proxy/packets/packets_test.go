package packets

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command/commandtest"
	"github.com/winkube/winkube/pkg/proxy"
)

// fakeHost has a table of connections and counts questions.
type fakeHost struct {
	flows   []Flow
	forgets []uint32 // of which marks
	links   int
	fail    error
	addrs   []netip.Addr
}

func (h *fakeHost) Link(netip.Addr) (string, error) {
	h.links++
	return "br0", nil
}

func (h *fakeHost) Forget(four bool, only uint32, stale func(Flow) bool) (int, error) {
	h.forgets = append(h.forgets, only)
	if h.fail != nil {
		return 0, h.fail
	}
	before := len(h.flows)
	h.flows = slices.DeleteFunc(h.flows, func(f Flow) bool { return f.To.Addr().Is4() == four && f.Mark&only == only && stale(f) })
	return before - len(h.flows), nil
}

func (h *fakeHost) Host() ([]netip.Addr, error) { return h.addrs, nil }

// rig is a Balancer on a simulated host. refuse says what iptables-restore answers to a script.
type rig struct {
	*fakeHost
	*Balancer
	run    *commandtest.Runner
	refuse func(script string) error
	last   string // script
}

func newRig(nodePorts ...netip.Prefix) *rig {
	r := &rig{fakeHost: &fakeHost{}, run: commandtest.New(), refuse: func(string) error { return nil }}
	r.install()
	r.Balancer = New(Config{Run: r.run, Host: r.fakeHost, Addresses: r.fakeHost, NodePorts: nodePorts})
	return r
}

func (r *rig) install() {
	for _, tool := range []string{"iptables", "ip6tables"} {
		r.run.Install(tool+"-save", func([]byte, []string) ([]byte, error) { return nil, nil })
		r.run.Install(tool+"-restore", func(script []byte, _ []string) ([]byte, error) {
			if err := r.refuse(string(script)); err != nil {
				return nil, err
			}
			r.last = string(script)
			return nil, nil
		})
	}
}

func tableOf(routes ...proxy.Route) *proxy.Table {
	t := &proxy.Table{}
	for i, r := range routes {
		r.Service.Name = string(rune('a' + i))
		t.Routes = append(t.Routes, r)
	}
	return t
}

func names(list ...string) (out []proxy.ServiceName) {
	for _, name := range list {
		out = append(out, proxy.ServiceName{Namespace: "x", Name: name})
	}
	return out
}

// Without iptables each Service with SCTP is told what is missing, others are not, and a host without such Services is
// well.
func TestNoIptables(t *testing.T) {
	r := newRig()
	r.run = commandtest.New()
	r.Balancer = New(Config{Run: r.run, Host: r.fakeHost, Addresses: r.fakeHost})
	tcp := with(routeOf(proxy.ClusterIP, "10.96.0.8:80", "10.244.2.2:80"), func(r *proxy.Route) { r.Protocol = v1.ProtocolTCP })
	for range 2 {
		if err := r.Sync(t.Context(), tableOf(tcp), nil); err != nil {
			t.Errorf("no SCTP: %v", err)
		}
	}
	table := tableOf(tcp, routeOf(proxy.ClusterIP, "10.96.0.1:80", "10.244.2.2:80"), routeOf(proxy.ClusterIP, "[fd96::1]:80"))
	failed, rest := proxy.RouteErrors(r.Sync(t.Context(), table, names("b", "c")))
	if len(failed) != 2 || len(rest) > 0 {
		t.Fatalf("got %v and %v", failed, rest)
	}
	for i, tool := range []string{"iptables", "ip6tables"} {
		if text := failed[i].Error(); !strings.Contains(text, "SCTP needs the packet filter: "+tool+" is missing on this host; install the package iptables") {
			t.Error(text)
		}
	}
	r.run.Transcript()
	if err := r.Sync(t.Context(), table, names("a")); err == nil {
		t.Error("a failure is forgotten")
	}
	if err := r.Sync(t.Context(), tableOf(tcp), names("b", "c")); err != nil {
		t.Errorf("the Services are gone: %v", err)
	}
}

// A kernel without xt_recent serves what needs no affinity.
func TestNoRecent(t *testing.T) {
	r := newRig()
	r.refuse = func(script string) error {
		if strings.Contains(script, "-m recent") {
			return commandtest.Exit(2, "Warning: Extension recent revision 0 not supported, missing kernel module?\niptables-restore: line 9 failed")
		}
		return nil
	}
	keeps := with(routeOf(proxy.ClusterIP, "10.96.0.4:80", "10.244.1.2:9090", "10.244.2.2:9090"), func(r *proxy.Route) { r.Affinity = time.Hour })
	table := tableOf(keeps, routeOf(proxy.ClusterIP, "10.96.0.1:80", "10.244.2.2:9090"))
	for _, changed := range [][]proxy.ServiceName{nil, names("a")} {
		r.last = ""
		failed, rest := proxy.RouteErrors(r.Sync(t.Context(), table, changed))
		if len(failed) != 1 || len(rest) > 0 || failed[0].Route.Front.Addr().String() != "10.96.0.4" || !strings.Contains(failed[0].Error(), "sessionAffinity ClientIP") ||
			!strings.Contains(failed[0].Error(), "Extension recent revision 0 not supported, missing kernel module? iptables-restore") {
			t.Fatalf("got %v and %v", failed, rest)
		}
		if !strings.Contains(r.last, "-d 10.96.0.1/32") || strings.Contains(r.last, "10.96.0.4") {
			t.Errorf("the other front is not served:\n%s", r.last)
		}
	}
}

// What could not be written or removed is tried again; what is served meanwhile has no error.
func TestTriesAgain(t *testing.T) {
	r := newRig()
	one := routeOf(proxy.ClusterIP, "10.96.0.1:80", "10.244.2.2:9090")
	two := routeOf(proxy.ClusterIP, "10.96.0.2:80", "10.244.2.2:9090")
	if err := r.Sync(t.Context(), tableOf(one), nil); err != nil {
		t.Fatal(err)
	}
	r.refuse = func(string) error { return commandtest.Exit(4, "Another app is currently holding the xtables lock") }
	failed, rest := proxy.RouteErrors(r.Sync(t.Context(), tableOf(one, two), names("b")))
	if len(failed) != 1 || len(rest) > 0 || failed[0].Route.Front != two.Front || !strings.Contains(failed[0].Error(), "xtables lock") {
		t.Errorf("got %v and %v", failed, rest)
	}
	r.run.Install("iptables-save", func([]byte, []string) ([]byte, error) {
		return []byte("*nat\n:PREROUTING ACCEPT [0:0]\n:WINKUBE-SCTP - [0:0]\n-A PREROUTING -p sctp -j WINKUBE-SCTP\nCOMMIT\n"), nil
	})
	if err := r.Sync(t.Context(), tableOf(), names("a", "b")); err == nil || !strings.Contains(err.Error(), "up to date") {
		t.Errorf("a removal fails: %v", err)
	}
	r.refuse, r.last = func(string) error { return nil }, ""
	if err := r.Sync(t.Context(), tableOf(), names()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(r.last, "-X WINKUBE-SCTP\n") {
		t.Errorf("not removed: %q", r.last)
	}
}

// A host whose rules cannot be listed has no error as long as nothing is wanted.
func TestCannotList(t *testing.T) {
	r := newRig()
	r.run.Install("iptables-save", func([]byte, []string) ([]byte, error) { return nil, commandtest.Exit(1, "no") })
	if err := r.Sync(t.Context(), tableOf(), nil); err != nil {
		t.Error(err)
	}
	if err := r.Remove(t.Context()); err == nil {
		t.Error("--cleanup says nothing")
	}
}

func TestNodeAddresses(t *testing.T) {
	all := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("169.254.3.4"), netip.MustParseAddr("fe80::1"),
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("fd01::1")}
	for _, test := range []struct {
		limits []netip.Prefix
		want   string
	}{
		{nil, "192.0.2.1/32 198.51.100.1/32 fd01::1/128"},
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.0/8")}, "192.0.2.1/32"},
	} {
		r := newRig(test.limits...)
		r.addrs = all
		script := ""
		r.refuse = func(s string) error { script += s; return nil }
		if err := r.Sync(t.Context(), tableOf(routeOf(proxy.NodePort, "0.0.0.0:30080"), routeOf(proxy.NodePort, "[::]:30080")), nil); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(script) {
			if to, ok := strings.CutPrefix(line, "-A WINKUBE-SCTP -d "); ok {
				got = append(got, strings.Fields(to)[0])
			}
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%v: got %s, want %s", test.limits, text, test.want)
		}
	}
}

// Connections end with their endpoint or front, and those from before the rules too. A failure is tried again.
func TestForgets(t *testing.T) {
	r := newRig()
	r.addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	flow := func(mark uint32, to, from string) Flow {
		return Flow{mark, netip.MustParseAddrPort(to), netip.MustParseAddrPort(from)}
	}
	r.flows = []Flow{
		flow(ownBit, "10.96.0.1:80", "10.244.1.2:9090"), flow(ownBit|nearBit, "10.96.0.1:80", "10.244.2.2:9090"), flow(ownBit|leaveBit, "192.0.2.1:30080", "10.244.2.2:9090"),
		flow(ownBit, "10.96.0.99:80", "10.244.2.2:9090"),     // a former proxy's
		flow(0, "10.96.0.1:80", "10.96.0.1:80"),              // before the rules
		flow(0, "198.51.100.7:80", "198.51.100.7:80"),        // others'
		flow(0, "192.0.2.1:30080", "10.9.9.9:1"),             // by others' rules
		flow(ownBit, "[fd96::1]:80", "[fd44:0:0:2::2]:9090"), // of a front that is gone
	}
	sync := func(changed []proxy.ServiceName, want string, endpoints ...string) {
		t.Helper()
		table := tableOf(routeOf(proxy.ClusterIP, "10.96.0.1:80", endpoints...), routeOf(proxy.NodePort, "0.0.0.0:30080", endpoints...), routeOf(proxy.ClusterIP, "[fd96::2]:80"))
		if err := r.Sync(t.Context(), table, changed); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range r.flows {
			got = append(got, f.To.String()+"="+f.From.String())
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("left are %s, want %s", text, want)
		}
	}
	const others = " 198.51.100.7:80=198.51.100.7:80 192.0.2.1:30080=10.9.9.9:1"
	sync(nil, "10.96.0.1:80=10.244.1.2:9090 10.96.0.1:80=10.244.2.2:9090 192.0.2.1:30080=10.244.2.2:9090"+others, "10.244.1.2:9090", "10.244.2.2:9090")
	r.forgets = nil
	sync(nil, "10.96.0.1:80=10.244.1.2:9090 10.96.0.1:80=10.244.2.2:9090 192.0.2.1:30080=10.244.2.2:9090"+others, "10.244.1.2:9090", "10.244.2.2:9090")
	sync(names("a", "b"), "10.96.0.1:80=10.244.1.2:9090 10.96.0.1:80=10.244.2.2:9090 192.0.2.1:30080=10.244.2.2:9090"+others, "10.244.1.2:9090", "10.244.2.2:9090", "10.244.3.2:9090")
	if len(r.forgets) > 0 {
		t.Errorf("connections are read although none can have ended: %v", r.forgets)
	}
	r.fail = errors.New("no netlink")
	sync(names("a", "b"), "10.96.0.1:80=10.244.1.2:9090 10.96.0.1:80=10.244.2.2:9090 192.0.2.1:30080=10.244.2.2:9090"+others, "10.244.1.2:9090")
	r.fail = nil
	sync(nil, "10.96.0.1:80=10.244.1.2:9090"+others, "10.244.1.2:9090")
	if !slices.Equal(r.forgets, []uint32{ownBit, ownBit}) {
		t.Errorf("looked at %#x, want only ours twice", r.forgets)
	}
	if err := r.Sync(context.Background(), &proxy.Table{}, names("a", "b", "c")); err != nil || len(r.flows) != 2 {
		t.Errorf("without fronts: %v, %v", err, r.flows)
	}
}
