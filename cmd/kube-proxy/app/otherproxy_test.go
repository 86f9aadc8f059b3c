package app

import (
	"context"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/otherproxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
)

// TestWarnOfOther: one Event of the Node if there are rules of another kube-proxy, none otherwise.
func TestWarnOfOther(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	there := otherproxy.Found{Traces: []string{"3 rules of iptables-legacy"}, Fix: "kube-proxy --cleanup"}
	for name, c := range map[string]struct {
		ctx   context.Context
		found otherproxy.Found
		want  string
	}{
		"rules":     {t.Context(), there, "Warning KubeProxyInTheWay rules of kube-proxy take connections to Services before winkube's proxy sees them: 3 rules of iptables-legacy; to remove it: kube-proxy --cleanup"},
		"none":      {t.Context(), otherproxy.Found{}, ""},
		"unread":    {t.Context(), otherproxy.Found{Unread: []string{"rules of kube-proxy: denied"}}, ""},
		"at an end": {ended, there, ""},
	} {
		var events []string
		warnOfOther(c.ctx, func(_ context.Context, ours string) otherproxy.Found {
			if ours != "cbr0" {
				t.Errorf("%s: our network is %q", name, ours)
			}
			return c.found
		}, "cbr0", func(kind, reason, message string) { events = append(events, kind+" "+reason+" "+message) })
		if got := strings.Join(events, "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestOwnBalancers: load balancers are this proxy's only where it makes them, not where its network has a name alone.
func TestOwnBalancers(t *testing.T) {
	for backEnd, want := range map[string]string{byHNS: "cbr0", byRelay: "", byPortProxy: "", byConnect: ""} {
		s := &settings{backEnd: backEnd, hns: hnslb.Config{Network: "cbr0"}}
		if got := s.ownBalancers(); got != want {
			t.Errorf("%s: %q, want %q", backEnd, got, want)
		}
	}
}
