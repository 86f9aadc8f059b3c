package packets

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/proxy"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

// endpoint parses "10.244.1.2:9090 local terminating".
func endpoint(text string) proxy.Endpoint {
	addr, rest, _ := strings.Cut(text, " ")
	return proxy.Endpoint{Addr: netip.MustParseAddrPort(addr), Local: strings.Contains(rest, "local"), Terminating: strings.Contains(rest, "terminating")}
}

func routeOf(kind proxy.Kind, front string, endpoints ...string) proxy.Route {
	r := proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "x", Name: "web"}}, Kind: kind, Protocol: v1.ProtocolSCTP, Front: netip.MustParseAddrPort(front)}
	for _, e := range endpoints {
		r.Backends = append(r.Backends, endpoint(e))
	}
	return r
}

func with(r proxy.Route, change func(*proxy.Route)) proxy.Route {
	change(&r)
	return r
}

var facts = Facts{
	Nodes: []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd01::1")},
	Pods:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd44:0:0:1::/64")},
	Links: map[netip.Addr]string{netip.MustParseAddr("10.244.1.2"): "br0", netip.MustParseAddr("10.244.2.2"): "eth0", netip.MustParseAddr("192.0.2.1"): "lo",
		netip.MustParseAddr("fd44:0:0:1::2"): "br0"},
}

// kindsOfFronts are a Route of each kind, by what is special about it.
func kindsOfFronts() map[string]proxy.Route {
	local := func(near ...string) func(*proxy.Route) {
		return func(r *proxy.Route) {
			r.KeepClient, r.Drop = true, len(r.Backends) == 0
			for _, e := range near {
				r.Near = append(r.Near, endpoint(e))
			}
		}
	}
	return map[string]proxy.Route{
		"cluster IP":                     routeOf(proxy.ClusterIP, "10.96.0.1:80", "10.244.1.2:9090 local", "10.244.2.2:9090", "192.0.2.1:9090 local"),
		"cluster IP, IPv6":               routeOf(proxy.ClusterIP, "[fd96::1]:80", "[fd44:0:0:1::2]:9090 local", "[fd44:0:0:2::2]:9090"),
		"nothing":                        routeOf(proxy.ClusterIP, "10.96.0.2:80"),
		"nothing, IPv6":                  routeOf(proxy.ClusterIP, "[fd96::2]:80"),
		"internal Local elsewhere":       with(routeOf(proxy.ClusterIP, "10.96.0.3:80"), func(r *proxy.Route) { r.Drop = true }),
		"affinity":                       with(routeOf(proxy.ClusterIP, "10.96.0.4:80", "10.244.1.2:9090 local", "10.244.2.2:9090"), func(r *proxy.Route) { r.Affinity = 3 * time.Hour }),
		"affinity, one endpoint":         with(routeOf(proxy.ClusterIP, "10.96.0.5:80", "10.244.2.2:9090"), func(r *proxy.Route) { r.Affinity = time.Hour }),
		"affinity, IPv6":                 with(routeOf(proxy.ExternalIP, "[fd03::4]:80", "[fd44:0:0:1::2]:9090 local", "[fd44:0:0:2::2]:9090"), func(r *proxy.Route) { r.Affinity = time.Hour }),
		"terminating":                    routeOf(proxy.ClusterIP, "10.96.0.6:80", "10.244.1.2:9090 local terminating", "10.244.2.2:9090"),
		"node port":                      routeOf(proxy.NodePort, "0.0.0.0:30080", "10.244.2.2:9090"),
		"node port, IPv6":                routeOf(proxy.NodePort, "[::]:30080", "[fd44:0:0:2::2]:9090"),
		"node port, Local":               with(routeOf(proxy.NodePort, "0.0.0.0:30081", "10.244.1.2:9090 local"), local("10.244.1.2:9090 local", "10.244.2.2:9090")),
		"node port, Local elsewhere":     with(routeOf(proxy.NodePort, "0.0.0.0:30082"), local("10.244.2.2:9090")),
		"external address, Local":        with(routeOf(proxy.ExternalIP, "203.0.113.1:80", "10.244.1.2:9090 local"), local("10.244.1.2:9090 local", "10.244.2.2:9090")),
		"load balancer, ranges":          with(routeOf(proxy.LoadBalancer, "203.0.113.2:80", "10.244.2.2:9090"), func(r *proxy.Route) { r.Sources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }),
		"load balancer, ranges, nothing": with(routeOf(proxy.LoadBalancer, "203.0.113.3:80"), func(r *proxy.Route) { r.Sources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }),
		"another protocol":               with(routeOf(proxy.ClusterIP, "10.96.0.7:80", "10.244.2.2:9090"), func(r *proxy.Route) { r.Protocol = v1.ProtocolTCP }),
	}
}

func text(s iptables.Set) string {
	var out strings.Builder
	for _, j := range s.Jumps {
		fmt.Fprintf(&out, "%s: -A %s %s -j %s\n", j.Table, j.Base, j.Match, j.To)
	}
	for _, c := range s.Chains {
		for _, r := range c.Rules {
			fmt.Fprintf(&out, "%s: -A %s %s\n", c.Table, c.Name, r)
		}
	}
	return out.String()
}

// TestPlan compares the rules for each kind of front, in both families, with testdata/rules.golden.
func TestPlan(t *testing.T) {
	var got strings.Builder
	kinds := kindsOfFronts()
	names := []string{}
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	common := map[bool]string{}
	for _, four := range []bool{true, false} {
		common[four] = text(Plan([]proxy.Route{routeOf(proxy.ClusterIP, map[bool]string{true: "10.96.0.0:1", false: "[fd96::]:1"}[four])}, facts, four))
		fmt.Fprintf(&got, "== no endpoints, IPv4 %t\n%s\n", four, common[four])
	}
	for _, name := range names {
		fmt.Fprintf(&got, "== %s\n", name)
		for _, four := range []bool{true, false} {
			for line := range strings.Lines(text(Plan([]proxy.Route{kinds[name]}, facts, four))) {
				if !strings.Contains(common[four], line) {
					got.WriteString(line)
				}
			}
		}
	}
	path := filepath.Join("testdata", "rules.golden")
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if golden, err := os.ReadFile(path); err != nil || strings.ReplaceAll(string(golden), "\r\n", "\n") != got.String() {
		t.Errorf("the rules differ from %s (%v); see with -update:\n%s", path, err, got.String())
	}
}

// TestPlanIsWhole: what the rules of all fronts refer to exists, under names that iptables accepts, and once.
func TestPlanIsWhole(t *testing.T) {
	var routes []proxy.Route
	for _, r := range kindsOfFronts() {
		routes = append(routes, r)
	}
	slices.SortFunc(routes, func(x, y proxy.Route) int { return x.Front.Compare(y.Front) })
	for _, four := range []bool{true, false} {
		set := Plan(routes, facts, four)
		if again := Plan(slices.Clone(routes), facts, four); text(again) != text(set) {
			t.Error("the same Routes make other rules")
		}
		chains, used := map[string]bool{}, map[string]bool{}
		for _, c := range set.Chains {
			if key := c.Table + c.Name; chains[key] || len(c.Name) > 28 || !strings.HasPrefix(c.Name, prefix) {
				t.Errorf("chain %s in table %s: twice, too long or not ours", c.Name, c.Table)
			} else {
				chains[key] = true
			}
		}
		for _, j := range set.Jumps {
			used[j.Table+j.To] = true
		}
		for _, c := range set.Chains {
			for _, r := range c.Rules {
				if _, target, ok := strings.Cut(r, "-j "+prefix); ok {
					used[c.Table+prefix+strings.TrimSpace(target)] = true
				}
			}
		}
		for name := range used {
			if !chains[name] {
				t.Errorf("no chain %s", name)
			}
		}
		for name := range chains {
			if !used[name] {
				t.Errorf("nothing leads to chain %s", name)
			}
		}
	}
	if set := Plan(nil, facts, true); len(set.Chains)+len(set.Jumps) > 0 {
		t.Errorf("no fronts make rules:\n%s", text(set))
	}
}
