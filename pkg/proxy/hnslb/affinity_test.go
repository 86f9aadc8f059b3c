package hnslb

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
)

// asked counts how often an HNS is asked for the network, and answers nothing while it is down.
type asked struct {
	hns.Client
	networks int
	down     bool
}

func (a *asked) Network(ctx context.Context, name string) (hns.Network, error) {
	if a.networks++; a.down {
		return hns.Network{}, hns.ErrDown
	}
	return a.Client.Network(ctx, name)
}

// sticky returns a Table of one Service with the affinity time.
func sticky(affinity time.Duration) *proxy.Table {
	want := one("10.244.2.7:80")
	want.Routes[0].Affinity = affinity
	return want
}

// TestAffinityTime: a load balancer serves the default time alone. Other times are for the relay; on an overlay, also on one
// that another program made, the load balancer serves them without the time, and the error names the field and the value.
func TestAffinityTime(t *testing.T) {
	const (
		none   = "have no session affinity"
		noTime = "spec.sessionAffinityConfig.clientIP.timeoutSeconds is %, but HNS load balancers have no such setting: this front has session affinity without that time; " +
			"want 10800, the default, or a network whose pods reach the relay (host-gateway, upstream)"
	)
	for _, c := range []struct {
		build    int
		affinity time.Duration
		bridge   bool   // a load balancer serves it on l2bridge
		sticky   bool   // a load balancer that is made has affinity
		err      string // with % for the seconds
	}{
		{17763, 0, true, false, ""},
		{17763, proxy.DefaultAffinity, false, false, none},
		{17763, time.Minute, false, false, none},
		{20348, 0, true, false, ""},
		{20348, proxy.DefaultAffinity, true, true, ""},
		{20348, time.Minute, false, true, strings.ReplaceAll(noTime, "%", "60")},
		{26100, 24 * time.Hour, false, true, strings.ReplaceAll(noTime, "%", "86400")},
		{0, time.Second, false, true, strings.ReplaceAll(noTime, "%", "1")},
	} {
		node := func() (netip.Addr, string) { return netip.MustParseAddr("10.1.0.11"), "02-00-00-00-00-09" }
		for _, on := range []string{"l2bridge", "overlay", "another overlay"} {
			l, client := newLedger(), hns.Client(nil)
			if client = l; on != "l2bridge" {
				client = &overlaid{quiet{l}, []hns.RemoteSubnet{second}}
			}
			b, want := New(Config{Client: client, Network: "x", Build: c.build, Overlay: on == "overlay", Node: node}), sticky(c.affinity)
			serves := b.Serves(&want.Routes[0])
			if serves != (c.bridge || on != "l2bridge") {
				t.Errorf("build %d, %s, %s: a load balancer serves it: %t", c.build, c.affinity, on, serves)
			}
			failed, rest := proxy.RouteErrors(b.Sync(t.Context(), want, nil))
			if len(rest) > 0 || len(failed) != map[bool]int{true: 1}[c.err != ""] || len(failed) == 1 && !strings.Contains(failed[0].Error(), c.err) {
				t.Errorf("build %d, %s, %s: %v, %v", c.build, c.affinity, on, failed, rest)
			}
			if len(l.balancers) != map[bool]int{true: 1}[serves] {
				t.Errorf("build %d, %s, %s: made %v", c.build, c.affinity, on, l.print())
			}
			for _, lb := range l.balancers {
				if lb.ClientAffinity != c.sticky {
					t.Errorf("build %d, %s, %s: made with affinity %t", c.build, c.affinity, on, lb.ClientAffinity)
				}
			}
		}
	}
}

// TestAffinityTimeIPv6: on an overlay of Server 2022, only the time of an IPv6 front is lost.
func TestAffinityTimeIPv6(t *testing.T) {
	o, b := onOverlay(second)
	want := sticky(time.Minute)
	r := &want.Routes[0]
	r.Front, r.Backends = netip.MustParseAddrPort("[fd00:96::1]:80"), []proxy.Endpoint{{Addr: netip.MustParseAddrPort("[fd00:244:2::7]:80")}}
	if failed, rest := proxy.RouteErrors(b.Sync(t.Context(), want, nil)); len(failed) != 1 || len(rest) > 0 || len(o.balancers) != 1 {
		t.Errorf("%v, %v: %v", failed, rest, o.print())
	}
}

// TestServesAsksOnce: whether the network is an overlay is asked only if it matters, and once until the next comparison, however
// HNS answers.
func TestServesAsksOnce(t *testing.T) {
	for _, down := range []bool{false, true} {
		o, _ := onOverlay(second)
		client := &asked{Client: o, down: down}
		b := New(Config{Client: client, Network: "x", Build: 20348, Node: func() (netip.Addr, string) { return netip.MustParseAddr("10.1.0.11"), "02-00-00-00-00-09" }})
		plain, minute := sticky(0), sticky(time.Minute)
		if !b.Serves(&plain.Routes[0]) || client.networks != 0 {
			t.Errorf("down %t: asked %d times for a Route that each network has", down, client.networks)
		}
		for range 3 {
			if got := b.Serves(&minute.Routes[0]); got == down || client.networks != 1 {
				t.Errorf("down %t: serves %t, asked %d times", down, got, client.networks)
			}
		}
		if !down {
			continue
		}
		if err := b.Sync(t.Context(), plain, nil); !errors.Is(err, hns.ErrDown) {
			t.Error(err)
		}
		client.down, client.networks = false, 0
		if !b.Serves(&minute.Routes[0]) || client.networks != 1 {
			t.Errorf("after HNS came back: asked %d times", client.networks)
		}
	}
}
