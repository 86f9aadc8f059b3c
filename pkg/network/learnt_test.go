package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// learnt is a cluster with some learned facts.
type learnt struct {
	services, pods []netip.Prefix
	read           bool
}

func (l *learnt) Ranges() (services, pods []netip.Prefix, read bool) {
	return l.services, l.pods, l.read
}

// TestPlanLearns: without a flag the host routes the learned ranges and they are exempt from OutBoundNAT; a flag overrides them.
func TestPlanLearns(t *testing.T) {
	facts := Facts{PodCIDRs: []string{"192.168.7.0/24"}, Services: prefixes("10.96.0.0/12"), Pods: prefixes("192.168.4.0/22", "203.0.113.0/24")}
	for _, mode := range []Mode{HostGateway, Overlay} {
		for _, test := range []struct {
			services, nonMasquerade, want []netip.Prefix
			keep                          string
		}{
			{nil, nil, prefixes("10.96.0.0/12"), "192.168.0.0/16, 203.0.113.0/24, 10.96.0.0/12"},
			{prefixes("172.30.0.0/16"), nil, prefixes("172.30.0.0/16"), "192.168.0.0/16, 203.0.113.0/24, 172.30.0.0/16"},
			{nil, prefixes("192.168.0.0/20"), prefixes("10.96.0.0/12"), "192.168.0.0/20, 10.96.0.0/12"},
		} {
			s, err := Plan(Config{Mode: mode, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}, Services: test.services, NonMasquerade: test.nonMasquerade}, facts)
			if err != nil {
				t.Fatal(err)
			}
			routes, keep := []netip.Prefix(nil), []netip.Prefix(nil)
			if mode == Overlay {
				routes, keep = s.Overlay.Services, s.Overlay.Keep
			} else {
				routes, keep = s.Bridge.Routes[:len(s.Bridge.Routes)-1], s.Bridge.Keep // the last is the node itself
				if got := s.Network.Options[optionNoNAT]; got != strings.ReplaceAll(test.keep, ", ", ",") {
					t.Errorf("exceptions %s, want %s", got, test.keep)
				}
			}
			if !slices.Equal(routes, test.want) || Join(keep) != test.keep {
				t.Errorf("%s: routes %v, want %v; kept %s, want %s", mode, routes, test.want, Join(keep), test.keep)
			}
		}
	}
}

// TestManagerLearns: on Windows no network is created before ranges are known; later ranges do not recreate a network in use.
func TestManagerLearns(t *testing.T) {
	cfg := Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}}
	r := newRig(t, cfg)
	known := &learnt{}
	r.cluster = known
	r.start(t, cfg)
	r.w.hnsID = "first"
	r.SetNode(nodeWith("10.244.1.0/24"))
	if err := r.sync(t.Context()); err != nil || r.e.made != 0 {
		t.Errorf("%v, made %d networks", err, r.e.made)
	}
	if _, err := r.Join(&v1.Pod{}); err == nil || !strings.Contains(err.Error(), "Services were not read yet") {
		t.Errorf("%v", err)
	}
	*known = learnt{services: prefixes("172.30.0.0/16"), read: true}
	if err := r.sync(t.Context()); err != nil || r.e.made != 1 || !slices.Contains(r.w.bridge.Routes, prefixes("172.30.0.0/16")[0]) {
		t.Errorf("%v, made %d networks, %+v", err, r.e.made, r.w.bridge)
	}
	known.services = prefixes("172.30.0.0/15", "172.31.0.0/20") // the first is wider than before
	for range 2 {
		if err := r.sync(t.Context()); err != nil || r.e.made != 1 {
			t.Errorf("%v, made %d networks", err, r.e.made)
		}
	}
	if s := r.s.state.Bridge; s == nil || !slices.Contains(s.Routes, known.services[1]) || !slices.Contains(s.Keep, known.services[1]) {
		t.Errorf("the endpoints get %+v", s)
	}
	cfg.Services = prefixes("10.96.0.0/12") // configured ranges need no waiting
	known.read = false
	r.start(t, cfg)
	r.SetNode(nodeWith("10.244.1.0/24"))
	_ = r.sync(t.Context()) // removes the network with the former ranges
	if err := r.sync(t.Context()); err != nil || !slices.Contains(r.w.bridge.Routes, cfg.Services[0]) {
		t.Errorf("%v, %+v", err, r.w.bridge)
	}
}

// TestOverlayLearns: existing endpoints get newly learned ranges.
func TestOverlayLearns(t *testing.T) {
	cfg := Config{Mode: Overlay, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}}
	r := newRig(t, cfg)
	known := &learnt{services: prefixes("172.30.0.0/16"), read: true}
	r.cluster = known
	r.start(t, cfg)
	r.SetNode(nodeWith("10.244.1.0/24"))
	for _, services := range [][]netip.Prefix{known.services, prefixes("172.30.0.0/16", "172.31.0.0/20")} {
		known.services = services
		if err := r.sync(t.Context()); err != nil || !slices.Equal(r.w.completed.Services, services) {
			t.Errorf("%v, %+v", err, r.w.completed)
		}
	}
}
