package hostport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktest "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/proxy"
)

func route(protocol v1.Protocol, front, to string) proxy.Route {
	return proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "shop", Name: "web"}}, Kind: proxy.NodePort, Protocol: protocol,
		Front: netip.MustParseAddrPort(front), Backends: []proxy.Endpoint{{Addr: netip.MustParseAddrPort(to), Local: true}}}
}

func TestRulesOf(t *testing.T) {
	routes4 := []proxy.Route{route(v1.ProtocolTCP, "0.0.0.0:8080", "10.244.1.7:80"), route(v1.ProtocolUDP, "10.1.0.12:53", "10.244.1.8:5353"),
		route(v1.ProtocolSCTP, "0.0.0.0:9", "10.244.1.7:9"), route(v1.ProtocolTCP, "127.0.0.1:99", "10.244.1.7:99")}
	for _, c := range []struct {
		name   string
		routes []proxy.Route
		four   bool
		want   string
	}{
		{"none", nil, true, ""},
		{"loopback alone, which the socket serves", routes4[3:], true, ""},
		{"IPv4", routes4, true, `
nat WINKUBE-HOSTPORT -s 127.0.0.0/8 -j RETURN
nat WINKUBE-HOSTPORT -d 10.1.0.12/32 -i winkube0 -p udp -m udp --dport 53 -j CONNMARK --set-xmark 0x8000000/0x8000000
nat WINKUBE-HOSTPORT -d 10.1.0.12/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.244.1.8:5353
nat WINKUBE-HOSTPORT -d 10.1.0.11/32 -j WINKUBE-HOSTPORT-NODE
nat WINKUBE-HOSTPORT-LEAVE -o winkube0 -m connmark --mark 0x8000000/0x8000000 -j MASQUERADE
nat WINKUBE-HOSTPORT-NODE -i winkube0 -p tcp -m tcp --dport 8080 -j CONNMARK --set-xmark 0x8000000/0x8000000
nat WINKUBE-HOSTPORT-NODE -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.244.1.7:80
nat WINKUBE-HOSTPORT-NODE -i winkube0 -p sctp -m sctp --dport 9 -j CONNMARK --set-xmark 0x8000000/0x8000000
nat WINKUBE-HOSTPORT-NODE -p sctp -m sctp --dport 9 -j DNAT --to-destination 10.244.1.7:9
nat PREROUTING -m addrtype --dst-type LOCAL > WINKUBE-HOSTPORT
nat OUTPUT -m addrtype --dst-type LOCAL > WINKUBE-HOSTPORT
nat POSTROUTING  > WINKUBE-HOSTPORT-LEAVE
`},
		{"IPv6", []proxy.Route{route(v1.ProtocolTCP, "[::]:8080", "[fd00::7]:80")}, false, `
nat WINKUBE-HOSTPORT -s ::1/128 -j RETURN
nat WINKUBE-HOSTPORT -d fd01::11/128 -j WINKUBE-HOSTPORT-NODE
nat WINKUBE-HOSTPORT-LEAVE -o winkube0 -m connmark --mark 0x8000000/0x8000000 -j MASQUERADE
nat WINKUBE-HOSTPORT-NODE -i winkube0 -p tcp -m tcp --dport 8080 -j CONNMARK --set-xmark 0x8000000/0x8000000
nat WINKUBE-HOSTPORT-NODE -p tcp -m tcp --dport 8080 -j DNAT --to-destination [fd00::7]:80
nat PREROUTING -m addrtype --dst-type LOCAL > WINKUBE-HOSTPORT
nat OUTPUT -m addrtype --dst-type LOCAL > WINKUBE-HOSTPORT
nat POSTROUTING  > WINKUBE-HOSTPORT-LEAVE
`},
	} {
		var b strings.Builder
		set := rulesOf(c.routes, []netip.Addr{card, card6}, "winkube0", c.four)
		for _, chain := range set.Chains {
			for _, rule := range chain.Rules {
				fmt.Fprintf(&b, "%s %s %s\n", chain.Table, chain.Name, rule)
			}
		}
		for _, j := range set.Jumps {
			fmt.Fprintf(&b, "%s %s %s > %s\n", j.Table, j.Base, j.Match, j.To)
		}
		if got := b.String(); got != strings.TrimPrefix(c.want, "\n") {
			t.Errorf("%s:\n%s", c.name, got)
		}
	}
	for target, want := range map[string]bool{"DOCKER": true, "DOCKER-USER": false, "KUBE-SERVICES": true, "WINKUBE-SCTP": false} {
		if iptables.OfOthers(target) != want {
			t.Errorf("%s: %t", target, !want)
		}
	}
}

// restored is a host that keeps nothing: it records what is written.
type restored struct {
	scripts []string
	fail    error
}

func (r *restored) Run(_ context.Context, stdin []byte, name string, _ ...string) ([]byte, error) {
	if !strings.HasSuffix(name, "-restore") {
		return nil, r.fail
	}
	r.scripts = append(r.scripts, name+"\n"+string(stdin))
	return nil, r.fail
}

// dnats returns where the scripts since the last call lead.
func (r *restored) dnats() string {
	var out []string
	for _, script := range r.scripts {
		for line := range strings.Lines(script) {
			if _, to, ok := strings.Cut(line, "--to-destination "); ok {
				out = append(out, strings.TrimSpace(to))
			}
		}
	}
	r.scripts = nil
	return strings.Join(out, " ")
}

// ready serves every Route but those of protocol SCTP, as the relay beside rules does, and of the taken ports.
type ready struct{ taken uint16 }

func (b ready) Sync(_ context.Context, want *proxy.Table, _ []proxy.ServiceName) error {
	var errs []error
	for _, r := range want.Routes {
		if r.Front.Port() == b.taken {
			errs = append(errs, &proxy.RouteError{Route: r, Err: errors.New("address already in use")})
		}
	}
	return errors.Join(errs...)
}

func boxed(name string, addresses []netip.Addr, ports ...pod.HostPort) pod.Observed {
	return pod.Observed{Namespace: "shop", Name: name, Sandboxes: []pod.Sandbox{{Running: true, Addresses: addresses, HostPorts: ports}}}
}

// TestRulesFollowSockets: rules wait until a former agent's pods and their addresses are known, lead to ports that the sockets
// hold, and end with their pod.
func TestRulesFollowSockets(t *testing.T) {
	host, clock := &restored{}, clocktest.NewFakeClock(time.Unix(1e9, 0))
	var forgotten []string
	rules := NewRules(RulesConfig{Run: host, Bridge: "winkube0", Doors: doorsAt(card), Forget: func(port uint16, with netip.Addr) error {
		forgotten = append(forgotten, fmt.Sprint(port, " ", with))
		return nil
	}})
	m := New(Config{Backend: ready{taken: 9000}, Rules: rules, Clock: clock, Event: func(string, string, string, string, string, string) {}})
	tcp := func(port uint16) pod.HostPort {
		return pod.HostPort{Port: port, Protocol: v1.ProtocolTCP, ContainerPort: 80}
	}
	udp := pod.HostPort{Port: 53, Protocol: v1.ProtocolUDP, ContainerPort: 53}
	other := netip.MustParseAddr("10.244.1.8")
	step := func(what, want string) {
		t.Helper()
		m.sync(t.Context())
		if got := host.dnats(); got != want {
			t.Errorf("%s: leads to %q, want %q", what, got, want)
		}
	}
	m.Serve("a", boxed("web", []netip.Addr{v4}, tcp(8080), udp))
	step("other pods may be here", "")
	m.Serve("b", boxed("late", nil, tcp(8081)))
	m.FoundAll()
	step("a pod's address is not known", "")
	m.Serve("c", boxed("taken", []netip.Addr{other}, tcp(9000)))
	m.Serve("d", boxed("new", nil, tcp(8082))) // its start must not hold up the others
	m.Serve("b", boxed("late", []netip.Addr{other}, tcp(8081)))
	step("all are known", "10.244.1.7:80 10.244.1.7:53 10.244.1.8:80")
	step("nothing has changed", "")
	if clock.Step(recheck); len(host.scripts) > 0 {
		t.Error("it ran by itself")
	}
	step("the host has lost them", "10.244.1.7:80 10.244.1.7:53 10.244.1.8:80")
	if len(forgotten) > 0 {
		t.Errorf("forgot %q", forgotten)
	}
	m.Serve("a", pod.Observed{})
	step("a pod has ended", "10.244.1.8:80")
	if !slices.Equal(forgotten, []string{"53 10.244.1.7"}) {
		t.Errorf("forgot %q, want the UDP port of the ended pod", forgotten)
	}
	m.Serve("b", pod.Observed{})
	step("no pod is left", "")
}

func doorsAt(addrs ...netip.Addr) func() ([]netip.Addr, error) {
	return func() ([]netip.Addr, error) { return addrs, nil }
}

// TestRulesFollowDoors: a hostPort is served at each address that the host has then, and keeps its rules while they are unknown.
func TestRulesFollowDoors(t *testing.T) {
	host, doors, unknown := &restored{}, []netip.Addr{card}, error(nil)
	r := NewRules(RulesConfig{Run: host, Bridge: "winkube0", Doors: func() ([]netip.Addr, error) { return doors, unknown }})
	second := netip.MustParseAddr("198.51.100.7")
	for _, step := range []struct {
		what    string
		doors   []netip.Addr
		unknown error
		want    []string // addresses in what is written; nil: nothing is
	}{
		{"one address", []netip.Addr{card}, nil, []string{card.String()}},
		{"a second one", []netip.Addr{card, second}, nil, []string{card.String(), second.String()}},
		{"unknown", nil, errors.New("no netlink"), nil},
		{"the first is gone", []netip.Addr{second}, nil, []string{second.String()}},
	} {
		host.scripts, doors, unknown = nil, step.doors, step.unknown
		err := r.Set(t.Context(), []proxy.Route{route(v1.ProtocolTCP, "0.0.0.0:8080", "10.244.1.7:80")}, false)
		if (err != nil) != (unknown != nil) {
			t.Errorf("%s: %v", step.what, err)
		}
		var got []string
		for line := range strings.Lines(strings.Join(host.scripts, "")) {
			if before, is := strings.CutSuffix(strings.TrimSpace(line), "/32 -j "+nodeChain); is {
				got = append(got, before[strings.LastIndex(before, " ")+1:])
			}
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: leads from %q, want %q", step.what, got, step.want)
		}
	}
}

// TestSettle: which pods the rules wait for.
func TestSettle(t *testing.T) {
	port := pod.HostPort{Port: 1, Protocol: v1.ProtocolTCP, ContainerPort: 1}
	none, whole := boxed("x", nil, port), boxed("x", []netip.Addr{v4}, port)
	m := New(Config{Backend: ready{}, Clock: clocktest.NewFakeClock(time.Unix(1e9, 0))})
	for i, c := range []struct {
		uid  types.UID
		o    pod.Observed
		want int
	}{{"a", none, 1}, {"a", none, 1}, {"b", boxed("x", nil), 1}, {"c", none, 2}, {"a", whole, 1}, {"c", pod.Observed{}, 0}} {
		if m.Serve(c.uid, c.o); len(m.unsure) != c.want {
			t.Errorf("step %d: waits for %d pods, want %d", i, len(m.unsure), c.want)
		}
	}
	m.FoundAll()
	if m.Serve("d", none); len(m.unsure) != 0 {
		t.Error("waits for a pod that starts now")
	}
}

// TestRulesFail: a host without a packet filter serves TCP and UDP by sockets, and says that SCTP has no way.
func TestRulesFail(t *testing.T) {
	host, events := &restored{fail: errors.New("no\n  packet filter")}, []string(nil)
	m := New(Config{Backend: ready{}, Rules: NewRules(RulesConfig{Run: host, Bridge: "winkube0", Doors: doorsAt(card)}), Clock: clocktest.NewFakeClock(time.Unix(1e9, 0)),
		Event: func(_, name, _, _, reason, message string) { events = append(events, name+" "+reason+" "+message) }})
	m.Serve("a", boxed("web", []netip.Addr{v4}, pod.HostPort{Port: 8080, Protocol: v1.ProtocolTCP, ContainerPort: 80}))
	m.Serve("b", boxed("sctp", []netip.Addr{v4}, pod.HostPort{Port: 9, Protocol: v1.ProtocolSCTP, ContainerPort: 9}))
	m.FoundAll()
	if m.sync(t.Context()) {
		t.Error("all is well without rules")
	}
	want := "sctp HostPortNotServed hostPort 9/SCTP: packet filter rules of IPv4 for hostPorts: cannot list packet filter rules: no packet filter"
	if len(events) != 1 || events[0] != want {
		t.Errorf("events %q, want %q", events, want)
	}
	host.fail = nil
	if !m.sync(t.Context()) || host.dnats() != "10.244.1.7:80 10.244.1.7:9" || len(events) != 2 {
		t.Errorf("the packet filter is back: %q", events)
	}
}

// TestNoRules: without a bridge of the kubelet's, what an agent with one has left is removed.
func TestNoRules(t *testing.T) {
	host := &restored{}
	r := NewRules(RulesConfig{Run: host, Doors: doorsAt(card)})
	if err := r.Set(t.Context(), []proxy.Route{route(v1.ProtocolTCP, "0.0.0.0:8080", "10.244.1.7:80")}, true); err != nil || len(host.scripts) > 0 {
		t.Errorf("%v, ran %q", err, host.scripts)
	}
}

// TestServiceKeepsNodePort: no pod takes an SCTP port that is a Service's node port, whichever of them came first.
func TestServiceKeepsNodePort(t *testing.T) {
	host, events, service := &restored{}, []string(nil), ""
	m := New(Config{Backend: ready{}, Rules: NewRules(RulesConfig{Run: host, Bridge: "winkube0", Doors: doorsAt(card)}), Clock: clocktest.NewFakeClock(time.Unix(1e9, 0)),
		NodePort: func(port uint16) string {
			if port == 30007 {
				return service
			}
			return ""
		},
		Event: func(_, name, _, _, reason, message string) { events = append(events, name+" "+reason+" "+message) }})
	sctp := func(port uint16) pod.HostPort {
		return pod.HostPort{Port: port, Protocol: v1.ProtocolSCTP, ContainerPort: port}
	}
	step := func(what, leads, event string) {
		t.Helper()
		m.sync(t.Context())
		if got := host.dnats(); got != leads || strings.Join(events, "\n") != event {
			t.Errorf("%s: leads to %q with Events %q; want %q and %q", what, got, events, leads, event)
		}
		events = nil
	}
	m.Serve("a", boxed("thief", []netip.Addr{v4}, sctp(30007), sctp(9)))
	m.FoundAll()
	step("no Service has the port", "10.244.1.7:30007 10.244.1.7:9", "")
	for len(m.wake) > 0 {
		<-m.wake
	}
	service = "shop/bus"
	if m.ServicesChanged(); len(m.wake) == 0 {
		t.Error("a changed Service does not count")
	}
	step("a Service has it", "10.244.1.7:9", "thief HostPortNotServed hostPort 30007/SCTP: it is the node port of Service shop/bus: want another")
	service = ""
	step("it has given it up", "10.244.1.7:30007 10.244.1.7:9", "thief HostPortServed All hostPorts of the pod are served now")
	m.Serve("a", boxed("web", []netip.Addr{v4}, pod.HostPort{Port: 30007, Protocol: v1.ProtocolTCP, ContainerPort: 80}))
	service = "shop/bus"
	step("the socket decides about TCP", "10.244.1.7:80", "")
	m.Serve("a", pod.Observed{})
	for len(m.wake) > 0 {
		<-m.wake
	}
	if m.ServicesChanged(); len(m.wake) > 0 {
		t.Error("Services wake a node without hostPorts")
	}
}
