package ipstack

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/iphelper"
)

// TestResolve changes one thing at a time: each rule decides, and gives its reason.
func TestResolve(t *testing.T) {
	server, list := []netip.Addr{netip.MustParseAddr("10.96.0.10")}, []string{"default.svc.cluster.local", "svc.cluster.local", "corp.example"}
	for _, c := range []struct {
		name, asked string
		names       Names
		want        Verdict
		hop         string // a part of the last step, or the whole name that was asked
	}{
		{"first suffix", "web", Names{Servers: server, Own: list}, Yes, "web.default.svc.cluster.local"},
		{"a later suffix", "printer", Names{Servers: server, Own: list}, Unknown, "suffix 3 of the search list leads to printer.corp.example"},
		{"no suffix fits", "nowhere", Names{Servers: server, Own: list}, No, "no name of the search list for nowhere"},
		{"a dot", "web.default", Names{Servers: server, Own: list}, No, "the cluster's DNS has no web.default"},
		{"a whole name", "web.default.svc.cluster.local", Names{Servers: server}, Yes, "web.default.svc.cluster.local"},
		{"a dot at the end", "web.default.svc.cluster.local.", Names{Servers: server}, Yes, "web.default.svc.cluster.local"},
		{"one word with a dot at the end", "web.", Names{Servers: server, Own: list}, No, "the cluster's DNS has no web"},
		{"the endpoint's list alone", "web", Names{Servers: server, Suffixes: list}, Unknown, "sources say differently"},
		{"no list", "web", Names{Servers: server}, Unknown, "no source says"},
		{"no server", "web", Names{Own: list}, No, "no DNS server"},
		{"a server that does not answer", "web", Names{Servers: []netip.Addr{netip.MustParseAddr("10.96.0.99")}, Own: list}, No, "nothing out there has 10.96.0.99"},
		{"Docker's own server", "web", Names{Servers: server, Own: list, Gateway: true}, Yes, "web.default.svc.cluster.local"},
	} {
		w, around := fresh(t)
		for _, name := range []string{pods, services} {
			w.IPHelper.Change(name, false, func(s *iphelper.Settings) { s.Forwarding = true })
		}
		around.Fronts = []Front{{Name: "DNS", Addr: netip.MustParseAddrPort("10.96.0.10:53"), UDP: true, Targets: []netip.AddrPort{netip.MustParseAddrPort("192.168.1.20:53")}}}
		a := Of(w, around).Resolve(c.names, c.asked, func(whole string) bool {
			return slices.Contains([]string{"web.default.svc.cluster.local", "printer.corp.example"}, whole)
		})
		if a.Verdict != c.want || c.want == Yes && a.Sees != c.hop || c.want != Yes && !strings.Contains(a.Hops[len(a.Hops)-1], c.hop) {
			t.Errorf("%s: %s %s, want %s with %q:\n%s", c.name, a.Verdict, a.Sees, c.want, c.hop, strings.Join(a.Hops, "\n"))
		}
	}
}
