package balance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/kubeproxy"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/portproxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	netshsim "github.com/winkube/winkube/test/windows/simulators/netsh"
)

// netsh implements portproxy's Netsh on the simulator. It counts program runs, and those that change something.
type netsh struct {
	*netshsim.Netsh
	log          *calls.Log
	runs, writes int
}

func newNetsh(t *testing.T) *netsh {
	n := &netsh{log: &calls.Log{}}
	n.Netsh = netshsim.New(n.log)
	t.Cleanup(func() {
		if unknown := n.log.Unknown(); len(unknown) > 0 {
			t.Errorf("the simulator was asked for what it does not know: %v", unknown)
		}
	})
	return n
}

func (n *netsh) Script(_ context.Context, lines []string) (string, error) {
	n.runs++
	if len(lines) > 1 {
		n.writes++
	}
	text := strings.Join(lines, "\r\n")
	output, code := n.Run([]string{"-f", "script"}, &text)
	if code != 0 {
		return output, fmt.Errorf("exit status %d", code)
	}
	return output, nil
}

// proxied adapts a host to the suite. TCP services with one endpoint are port proxy rules; a fake serves the rest.
type proxied struct {
	host
	netsh     *netsh
	addresses *relaytest.Addresses
	rest      *proxytest.Backend
}

func (h *proxied) Observe(t *testing.T, route proxy.Route) (out []netip.AddrPort) {
	for _, r := range h.netsh.Rules() {
		if r.ListenAddress+":"+r.ListenPort != route.Front.String() || route.Protocol != v1.ProtocolTCP {
			continue
		}
		out = append(out, netip.MustParseAddrPort(r.ConnectAddress+":"+r.ConnectPort))
		if !slices.Contains(strings.Split(h.addresses.String(), "\n"), r.ListenAddress) {
			t.Errorf("a rule listens at %s, which the host does not have", route.Front)
		}
	}
	if r, ok := h.rest.Route(route.Protocol, route.Front); ok {
		if len(out) > 0 {
			t.Errorf("two listen at %s", route.Front)
		}
		for _, e := range r.Targets() {
			out = append(out, e.Addr)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// Occupy: see TestForeignRule.
func (h *proxied) Occupy(*testing.T, v1.Protocol, netip.AddrPort) func() { return nil }

func (h *proxied) Traces(*testing.T) []string {
	return strings.Fields(h.netsh.String() + h.addresses.String() + h.rest.String())
}

func (h *proxied) Writes() int { return h.netsh.writes + h.addresses.Writes() }

func (h *proxied) Inject(on bool) {
	h.addresses.Inject(on)
	h.netsh.Refuse(nil)
	if on {
		h.netsh.Refuse(func(string) bool { return proxytest.OneInTen() })
	}
}

func newProxied(t *testing.T) (*proxied, func() *portproxy.Backend) {
	h := &proxied{netsh: newNetsh(t), addresses: relaytest.NewAddresses(netip.MustParseAddr("192.0.2.9")), rest: proxytest.NewBackend()}
	return h, func() *portproxy.Backend {
		return portproxy.New(portproxy.Config{Netsh: h.netsh, Addresses: h.addresses.Whole()})
	}
}

// TestPortProxySuite runs the suite of all back ends on the composition that the proxy uses.
func TestPortProxySuite(t *testing.T) {
	proxytest.Run(t, func(t *testing.T) (proxy.Backend, proxytest.Host) {
		h, start := newProxied(t)
		return kubeproxy.NewSplit(start(), h.rest, portproxy.Serves), h
	})
}

// single returns services with one endpoint each.
func single(services int) *proxy.Table {
	want := table(services)
	for i := range want.Routes {
		want.Routes[i].Backends = want.Routes[i].Backends[:1]
	}
	return want
}

// TestForeignRule: an administrator's rule stays unchanged, whether it conflicts with ours, leads where ours would, or is unrelated.
func TestForeignRule(t *testing.T) {
	h, start := newProxied(t)
	foreign := []netshsim.Rule{
		{Kind: "v4tov4", ListenAddress: "10.96.0.0", ListenPort: "80", ConnectAddress: "10.9.9.9", ConnectPort: "80"}, // conflicts with service 0
		{Kind: "v4tov4", ListenAddress: "10.96.0.1", ListenPort: "80", ConnectAddress: "10.1.0.1", ConnectPort: "8080"},
		{Kind: "v4tov4", ListenAddress: "*", ListenPort: "9000", ConnectAddress: "10.9.9.9", ConnectPort: "80"},
		{Kind: "v6tov6", ListenAddress: "fd00::1", ListenPort: "80", ConnectAddress: "fd00::2", ConnectPort: "80"},
	}
	for _, r := range foreign {
		h.netsh.AddRule(r)
	}
	before := h.netsh.String()
	b, want := start(), single(3)
	for _, changed := range [][]proxy.ServiceName{nil, {want.Routes[0].Service.ServiceName}} {
		failed, rest := proxy.RouteErrors(b.Sync(t.Context(), want, changed))
		if len(rest) > 0 || len(failed) != 1 || failed[0].Route.Front != want.Routes[0].Front || !strings.Contains(failed[0].Error(), "delete v4tov4 listenport=80 listenaddress=10.96.0.0") {
			t.Errorf("Sync: %v %v", failed, rest)
		}
	}
	if got := h.netsh.String(); !strings.Contains(got, "10.96.0.2:80 to 10.1.0.2:8080") {
		t.Errorf("the third service is not served:\n%s", got)
	}
	if out, code := h.netsh.Run(strings.Fields("interface portproxy delete v4tov4 listenport=80 listenaddress=10.96.0.0"), nil); code != 0 {
		t.Fatal(out)
	}
	if err := b.Sync(t.Context(), want, []proxy.ServiceName{want.Routes[0].Service.ServiceName}); err != nil {
		t.Errorf("when it is gone: %v", err)
	}
	if err := start().Sync(t.Context(), &proxy.Table{}, nil); err != nil { // proxy --cleanup
		t.Fatal(err)
	}
	if got, want := h.netsh.String(), strings.Replace(before, "portproxy v4tov4 10.96.0.0:80 to 10.9.9.9:80\n", "", 1); got != want {
		t.Errorf("left:\n%s\nwant:\n%s", got, want)
	}
}

// TestPortProxyFormerRun: a new proxy adopts the rules that a killed proxy left and a reboot kept. It changes wrong ones and removes
// unwanted ones. It restores rules that are deleted while it runs.
func TestPortProxyFormerRun(t *testing.T) {
	h, start := newProxied(t)
	sync := func(b *portproxy.Backend, want *proxy.Table) string {
		t.Helper()
		if err := b.Sync(t.Context(), want, nil); err != nil {
			t.Fatal(err)
		}
		return h.netsh.String()
	}
	sync(start(), single(10))
	h.addresses = relaytest.NewAddresses() // a reboot: addresses are gone, rules are not
	want := single(8)
	want.Routes[3].Backends[0].Addr = netip.MustParseAddrPort("10.1.7.7:8080")
	b := start()
	h.netsh.log.Reset()
	first := sync(b, want)
	// IP Helper read the rules before their addresses existed: each is deleted and added again.
	for _, line := range []string{"-f: interface portproxy delete v4tov4 listenport=80 listenaddress=10.96.0.2", "-f: interface portproxy add v4tov4 listenport=80 listenaddress=10.96.0.2 connectaddress=10.1.0.2 connectport=8080"} {
		if got := strings.Count(h.netsh.log.String(), line); got != 1 {
			t.Errorf("%q is run %d times after a reboot, want once:\n%s", line, got, h.netsh.log)
		}
	}
	h.netsh.log.Reset()
	if sync(b, want); strings.Contains(h.netsh.log.String(), " add ") || strings.Contains(h.netsh.log.String(), " delete v") {
		t.Errorf("the second time nothing is to do:\n%s", h.netsh.log)
	}
	if strings.Count(first, "portproxy v4tov4") != 8 || strings.Count(first, "portproxy v6tov4 fd57:494e:4b55:4245") != 8 || !strings.Contains(first, "10.96.0.3:80 to 10.1.7.7:8080") {
		t.Errorf("after a reboot:\n%s", first)
	}
	if out, code := h.netsh.Run([]string{"interface", "portproxy", "reset"}, nil); code != 0 {
		t.Fatal(out)
	}
	if got := sync(b, want); got != first {
		t.Errorf("after a reset:\n%s", got)
	}
	if got := sync(start(), &proxy.Table{}); got != "" {
		t.Errorf("left:\n%s", got)
	}
}

// TestPortProxyUnknown: if netsh's output is unusable, the state is unknown and nothing is concluded from it.
func TestPortProxyUnknown(t *testing.T) {
	h, start := newProxied(t)
	b, want := start(), single(3)
	if err := b.Sync(t.Context(), want, nil); err != nil {
		t.Fatal(err)
	}
	before := h.netsh.String()
	h.netsh.Refuse(func(command string) bool { return command == "netsh" })
	for _, changed := range [][]proxy.ServiceName{nil, {want.Routes[2].Service.ServiceName}} {
		if routes, rest := proxy.RouteErrors(b.Sync(t.Context(), single(2), changed)); len(routes) > 0 || len(rest) == 0 {
			t.Errorf("Sync with a netsh out of order: %v %v", routes, rest)
		}
	}
	h.netsh.Refuse(nil)
	if got := h.netsh.String(); got != before {
		t.Errorf("changed to:\n%s", got)
	}
	if err := b.Sync(t.Context(), want, []proxy.ServiceName{}); err != nil || h.netsh.String() != before {
		t.Errorf("afterwards: %v\n%s", err, h.netsh)
	}
}

// TestPortProxyKinds: rules between address families, node ports on all addresses, and what a rule cannot do.
func TestPortProxyKinds(t *testing.T) {
	h, start := newProxied(t)
	want := single(5)
	to := func(i int, front, target string) {
		want.Routes[i].Front, want.Routes[i].Backends[0].Addr = netip.MustParseAddrPort(front), netip.MustParseAddrPort(target)
	}
	to(0, "10.96.0.1:80", "[fd00::7]:80")
	to(1, "[fd00:96::1]:80", "10.244.1.7:80")
	to(2, "[fd00:96::2]:80", "[fd00::7]:80")
	to(3, "0.0.0.0:30080", "10.244.1.7:80")
	want.Routes[3].Kind = proxy.NodePort
	want.Routes[4].Protocol = v1.ProtocolUDP
	b := start()
	err := b.Sync(t.Context(), want, nil)
	failed, rest := proxy.RouteErrors(err)
	if len(failed) != 1 || len(rest) > 0 || failed[0].Route.Protocol != v1.ProtocolUDP {
		t.Errorf("UDP: %v", err)
	}
	for _, line := range []string{"v4tov6 10.96.0.1:80 to fd00::7:80", "v6tov4 fd00:96::1:80 to 10.244.1.7:80", "v6tov6 fd00:96::2:80 to fd00::7:80", "v4tov4 *:30080 to 10.244.1.7:80",
		`firewall "winkube port proxy" allow in iphlpsvc tcp 80,30080`} {
		if !strings.Contains(h.netsh.String(), line) {
			t.Errorf("%q is missing in:\n%s", line, h.netsh)
		}
	}
	to(0, "10.96.0.1:80", "10.244.1.7:80") // another kind of rule for the same listener
	if err := b.Sync(t.Context(), want, []proxy.ServiceName{want.Routes[0].Service.ServiceName}); !strings.Contains(h.netsh.String(), "v4tov4 10.96.0.1:80") || strings.Contains(h.netsh.String(), "v4tov6") {
		t.Errorf("%v\n%s", err, h.netsh)
	}
	limited := portproxy.New(portproxy.Config{Netsh: h.netsh, Addresses: h.addresses.Whole(), NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	if err := limited.Sync(t.Context(), &proxy.Table{Routes: want.Routes[3:4]}, nil); err != nil || !strings.HasPrefix(h.netsh.String(), "portproxy v4tov4 192.0.2.9:30080 to") {
		t.Errorf("%v\n%s", err, h.netsh)
	}
	if err := limited.Sync(t.Context(), &proxy.Table{}, nil); err != nil || h.netsh.String() != "" {
		t.Errorf("%v\n%s", err, h.netsh)
	}
}

// TestPortProxyCalls counts runs of netsh for 2,000 services: one listing and one script at start, one script per
// change.
func TestPortProxyCalls(t *testing.T) {
	h, start := newProxied(t)
	b, want := start(), single(2000)
	runs, commands := 0, 0
	count := func(what string, wantRuns int, changed []proxy.ServiceName) {
		t.Helper()
		if err := b.Sync(t.Context(), want, changed); err != nil {
			t.Fatal(err)
		}
		all := len(h.netsh.log.Calls("run"))
		if got := h.netsh.runs - runs; got != wantRuns {
			t.Errorf("%s: %d runs of netsh, want %d", what, got, wantRuns)
		}
		t.Logf("%s: %d runs of netsh, %d commands", what, h.netsh.runs-runs, all-commands)
		runs, commands = h.netsh.runs, all
	}
	count("2,000 services cold", 2, nil)
	want.Routes[7].Backends = []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.3.0.7:8080")}}
	count("another endpoint", 1, []proxy.ServiceName{want.Routes[7].Service.ServiceName})
	count("nothing changed", 0, []proxy.ServiceName{want.Routes[8].Service.ServiceName})
	count("a resync", 1, nil)
	b = start()
	count("a new proxy", 2, nil)
	if out, code := h.netsh.Run([]string{"interface", "portproxy", "reset"}, nil); code != 0 {
		t.Fatal(out)
	}
	runs, commands = h.netsh.runs, len(h.netsh.log.Calls("run"))
	count("all rules lost", 2, nil)
	if err := b.Sync(t.Context(), &proxy.Table{}, nil); err != nil || h.netsh.String() != "" {
		t.Errorf("%v, left:\n%s", err, h.netsh)
	}
}
