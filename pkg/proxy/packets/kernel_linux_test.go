package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/winkube/winkube/pkg/iptables/sctptest"
	"github.com/winkube/winkube/pkg/proxy"
)

func eachFamily(t *testing.T, do func(*testing.T, *lab)) {
	for name, family := range map[string]addresses{"IPv4": family4, "IPv6": family6} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, family)
			l.serve()
			do(t, l)
		})
	}
}

// Through the real rules every client reaches the endpoints, and they see its address wherever the answers come back
// this way.
func TestWays(t *testing.T) {
	eachFamily(t, func(t *testing.T, l *lab) {
		f, b := l.family, l.balancer()
		service, nodePort := netip.AddrPortFrom(f.service, 80), netip.AddrPortFrom(f.node, 30080)
		balancer := netip.AddrPortFrom(f.external, 80)
		local := func(r proxy.Route, near string) proxy.Route {
			r.KeepClient, r.Near, r.Drop = true, f.endpoints(near), len(r.Backends) == 0
			return r
		}
		limited := func(r proxy.Route, client string) proxy.Route {
			r.Sources = []netip.Prefix{netip.MustParsePrefix(client)}
			return r
		}
		sees := func(name string, client netip.Addr) string { return fmt.Sprintf("%s sees %s", name, client) }
		for _, c := range []struct {
			what string
			from netns.NsHandle
			to   netip.AddrPort
			want string
			by   proxy.Route
		}{
			{"pod to the other node", l.a, service, sees("c", f.a), f.route("w", proxy.ClusterIP, "c")},
			{"pod to a pod behind the same bridge", l.a, service, sees("b", f.bridge), f.route("w", proxy.ClusterIP, "b")},
			{"host to a pod here", l.node, service, sees("b", f.bridge), f.route("w", proxy.ClusterIP, "b")},
			{"host to the other node", l.node, service, sees("c", f.node), f.route("w", proxy.ClusterIP, "c")},
			{"host at a node port", l.node, nodePort, sees("b", f.bridge), f.route("w", proxy.NodePort, "b")},
			{"pod at a node port", l.a, nodePort, sees("c", f.a), f.route("w", proxy.NodePort, "c")},
			{"outside at a node port, pod here", l.client, nodePort, sees("b", f.client), f.route("w", proxy.NodePort, "b")},
			{"outside at a node port, other node", l.client, nodePort, sees("c", f.node), f.route("w", proxy.NodePort, "c")},
			{"outside at a load balancer", l.client, balancer, sees("b", f.client), f.route("w", proxy.LoadBalancer, "b")},
			{"pod at a load balancer", l.a, balancer, sees("c", f.a), f.route("w", proxy.LoadBalancer, "c")},
			{"host at an external address", l.node, netip.AddrPortFrom(f.external, 81), sees("c", f.node), f.route("w", proxy.ExternalIP, "c")},

			{"nothing, pod", l.a, service, "refused", f.route("w", proxy.ClusterIP, "")},
			{"nothing, host", l.node, service, "refused", f.route("w", proxy.ClusterIP, "")},
			{"nothing, outside at a node port", l.client, nodePort, "refused", f.route("w", proxy.NodePort, "")},
			{"nothing, outside at a load balancer", l.client, balancer, "refused", f.route("w", proxy.LoadBalancer, "")},

			{"Local, outside", l.client, nodePort, sees("b", f.client), local(f.route("w", proxy.NodePort, "b"), "b c")},
			{"Local elsewhere, outside", l.client, nodePort, "silent", local(f.route("w", proxy.NodePort, ""), "c")},
			{"Local elsewhere, pod", l.a, nodePort, sees("c", f.a), local(f.route("w", proxy.NodePort, ""), "c")},
			{"Local elsewhere, host", l.node, balancer, sees("c", f.node), local(f.route("w", proxy.LoadBalancer, ""), "c")},
			{"internal Local elsewhere", l.a, service, "silent", func() proxy.Route { r := f.route("w", proxy.ClusterIP, ""); r.Drop = true; return r }()},

			{"source range, admitted", l.client, balancer, sees("b", f.client), limited(f.route("w", proxy.LoadBalancer, "b"), netip.PrefixFrom(f.client, f.client.BitLen()).String())},
			{"source range, other", l.client, balancer, "silent", limited(f.route("w", proxy.LoadBalancer, "b"), f.pods.String())},
			{"source range, admitted to nothing", l.a, balancer, "refused", limited(f.route("w", proxy.LoadBalancer, ""), f.pods.String())},
		} {
			if err := b.Sync(t.Context(), f.table(c.by), nil); err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
			if got := l.meets(c.from, c.to); got != c.want {
				t.Errorf("%s: %s, want %s", c.what, got, c.want)
			}
		}
	})
}

// Pods behind one bridge reach each other and themselves, whether or not frames that pass it meet the packet filter.
func TestBridge(t *testing.T) {
	eachFamily(t, func(t *testing.T, l *lab) {
		f, b := l.family, l.balancer()
		for _, on := range []bool{false, true} {
			l.bridged(on)
			for endpoint, want := range map[string]string{"a": "a sees " + f.bridge.String(), "b": "b sees " + f.bridge.String(), "c": "c sees " + f.a.String(), "": "refused"} {
				l.must(b.Sync(t.Context(), f.table(f.route("w", proxy.ClusterIP, endpoint)), nil))
				if got := l.meets(l.a, netip.AddrPortFrom(f.service, 80)); got != want {
					t.Errorf("a bridge that calls iptables: %t, endpoint %q: %s, want %s", on, endpoint, got, want)
				}
			}
		}
	})
}

// Clients spread over the endpoints, or keep one.
func TestSpread(t *testing.T) {
	eachFamily(t, func(t *testing.T, l *lab) {
		f, b := l.family, l.balancer()
		count := func() map[string]int {
			out := map[string]int{}
			for range 30 {
				name, _, _ := strings.Cut(l.meets(l.client, netip.AddrPortFrom(f.node, 30080)), " ")
				out[name]++
			}
			return out
		}
		r := f.route("w", proxy.NodePort, "a b c")
		l.must(b.Sync(t.Context(), f.table(r), nil))
		if got := count(); got["a"] < 2 || got["b"] < 2 || got["c"] < 2 || got["a"]+got["b"]+got["c"] != 30 {
			t.Errorf("clients without affinity are not spread: %v", got)
		}
		r.Affinity = time.Hour
		l.must(b.Sync(t.Context(), f.table(r), []proxy.ServiceName{r.Service.ServiceName}))
		got := count()
		if len(got) != 1 || got["a"]+got["b"]+got["c"] != 30 {
			t.Errorf("a client with affinity meets %v", got)
		}
		before := fmt.Sprint(got)
		l.must(l.balancer().Sync(t.Context(), f.table(r), nil))
		if after := fmt.Sprint(count()); after != before {
			t.Errorf("after a restart it meets %s, want %s", after, before)
		}
	})
}

// An association whose endpoint is gone ends, one whose endpoint stays goes on.
func TestEndpointsGo(t *testing.T) {
	eachFamily(t, func(t *testing.T, l *lab) {
		f, b := l.family, l.balancer()
		service := netip.AddrPortFrom(f.service, 80)
		l.must(b.Sync(t.Context(), f.table(f.route("w", proxy.ClusterIP, "b c")), nil))
		open := map[string]*sctptest.Association{}
		l.in(l.a, func() error {
			for range 60 {
				a, err := sctptest.Dial(service)
				if err != nil {
					return err
				}
				if t.Cleanup(a.Close); open[a.Name] == nil {
					open[a.Name] = a
				}
				if len(open) == 2 {
					return nil
				}
			}
			return errors.New("no client has met both endpoints")
		})
		check := func(when string, to string, want error) {
			t.Helper()
			if err := open[to].Send(); !errors.Is(err, want) {
				t.Errorf("%s, %s: %v, want %v", when, to, err, want)
			}
		}
		check("open", "b", nil)
		check("open", "c", nil)
		name := []proxy.ServiceName{{Namespace: "x", Name: "w"}}
		draining := f.route("w", proxy.ClusterIP, "b c")
		draining.Backends[0].Terminating = true
		l.must(b.Sync(t.Context(), f.table(draining), name))
		check("terminating", "b", nil)
		if got := l.meets(l.a, service); !strings.HasPrefix(got, "c ") {
			t.Errorf("a new client meets a terminating endpoint: %s", got)
		}
		l.must(b.Sync(t.Context(), f.table(f.route("w", proxy.ClusterIP, "c")), name))
		check("gone", "b", sctptest.ErrRefused)
		check("gone", "c", nil)
		l.must(b.Sync(t.Context(), f.table(), name))
		if err := open["c"].Send(); err == nil {
			t.Error("an association survives its Service")
		}
	})
}

// Nothing is written without a change, the next proxy adopts the rules, removed ones come back, and all can be removed.
func TestKeeps(t *testing.T) {
	l := newLab(t, family4)
	l.serve()
	before := l.saved()
	f, b := l.family, l.balancer()
	r := f.route("w", proxy.ClusterIP, "b c")
	r.Affinity = time.Hour
	limited := f.route("v", proxy.LoadBalancer, "b")
	limited.Sources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	near := f.route("u", proxy.NodePort, "")
	near.Near, near.Drop = f.endpoints("c"), true
	table := f.table(r, limited, near, family6.route("w", proxy.ClusterIP, "b c"), family6.route("v", proxy.NodePort, ""))
	l.must(b.Sync(t.Context(), table, nil))
	written := l.run.writes
	if written != 2 {
		t.Errorf("%d programs wrote, want one for each family", written)
	}
	runs := l.run.runs
	l.must(b.Sync(t.Context(), table, []proxy.ServiceName{{Namespace: "x", Name: "w"}, {Namespace: "x", Name: "other"}}))
	if l.run.runs != runs {
		t.Errorf("a Sync without a change ran %d programs", l.run.runs-runs)
	}
	l.must(b.Sync(t.Context(), table, nil))
	b = l.balancer() // the one before was killed
	l.must(b.Sync(t.Context(), table, nil))
	if l.run.writes != written {
		t.Errorf("the same Table was written again:\n%s", l.saved())
	}
	for _, script := range []string{
		"*nat\n-D PREROUTING -p sctp -j WINKUBE-SCTP\nCOMMIT\n", "*nat\n:WINKUBE-SCTP - [0:0]\nCOMMIT\n",
		"*nat\n-I OUTPUT 1 -j KUBE-SERVICES\nCOMMIT\n", "*filter\n-I FORWARD 1 -j DOCKER-FORWARD\nCOMMIT\n", "*filter\n-I INPUT 1 -p sctp -j WINKUBE-SCTP-DENY\nCOMMIT\n",
	} {
		l.restore("iptables-restore", script)
		l.must(b.Sync(t.Context(), table, nil))
		if written++; l.run.writes != written {
			t.Errorf("not repaired after %q", script)
			written = l.run.writes
		}
	}
	for _, space := range []netns.NsHandle{l.a, l.node} {
		if got := l.meets(space, netip.AddrPortFrom(f.service, 80)); !strings.Contains(got, " sees ") {
			t.Errorf("not served after repairs: %s\n%s", got, l.saved())
		}
	}
	l.must(l.balancer().Remove(t.Context()))
	l.restore("iptables-restore", "*nat\n-D OUTPUT -j KUBE-SERVICES\nCOMMIT\n*filter\n-D FORWARD -j DOCKER-FORWARD\nCOMMIT\n")
	if after := l.saved(); strings.Contains(after, prefix) {
		t.Errorf("rules are left:\n%s\nbefore:\n%s", after, before)
	}
}
