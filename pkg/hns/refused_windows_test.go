package hns

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// refuse makes the simulated HNS fail a call; the real one does not do that on request.
func refuse(t *testing.T, call string) {
	t.Helper()
	needHNS(t)
	t.Setenv("WINKUBE_REFUSE", "HcnEnumerateNetworks")
	if _, err := hcn.ListNetworks(); err == nil {
		t.Skip("this HNS refuses nothing on request")
	}
	t.Setenv("WINKUBE_REFUSE", call)
}

// withBridge creates a bridge of ours with a pod's endpoint; the simulated host has one adapter, and so one network at
// a time.
func withBridge(t *testing.T) (Bridge, PodEndpoint) {
	t.Helper()
	needHNS(t)
	b := Bridge{Name: "refused-bridge", Subnet: netip.MustParsePrefix("10.244.70.0/24"), Gateway: netip.MustParseAddr("10.244.70.2"), Router: netip.MustParseAddr("10.244.70.1")}
	e := PodEndpoint{Container: "winkube-test", Addr: netip.MustParseAddr("10.244.70.9")}
	_, err := MakeBridge(b)
	if err := errors.Join(err, JoinBridge(b, false)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removedOnce(t, b.Name) })
	if e.ID, err = MakeEndpoint(b.Pods(), e); err != nil {
		t.Fatal(err)
	}
	return b, e
}

// withOverlay creates an overlay of ours with a pod's endpoint.
func withOverlay(t *testing.T) Overlay {
	t.Helper()
	needHNS(t)
	o := Overlay{Name: "refused-overlay", Subnet: netip.MustParsePrefix("10.244.71.0/24"), Gateway: netip.MustParseAddr("10.244.71.1"), VNI: 4096, Provider: netip.MustParseAddr("192.168.1.3")}
	if _, err := MakeOverlay(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removedOnce(t, o.Name) })
	if _, err := MakeEndpoint(o.Pods(), PodEndpoint{Container: "winkube-test", Addr: netip.MustParseAddr("10.244.71.9")}); err != nil {
		t.Fatal(err)
	}
	return o
}

func needHNS(t *testing.T) {
	t.Helper()
	if _, err := hcn.GetGlobals(); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
}

// removedOnce: a network is removed with its endpoints, and the second time there is none.
func removedOnce(t *testing.T, name string) {
	t.Helper()
	for _, want := range []bool{true, false} {
		if removed, err := RemoveNetwork(name); err != nil || removed != want {
			t.Errorf("%s removed: %t, %v", name, removed, err)
		}
	}
	if list, err := hcn.ListEndpoints(); err != nil || slices.ContainsFunc(list, func(e hcn.HostComputeEndpoint) bool { return strings.Contains(e.Name, name) }) {
		t.Errorf("endpoints are left: %+v, %v", list, err)
	}
}

// refusal is an HNS call that is refused, with our function and a part of its error.
type refusal struct {
	call, says string
	do         func() error
}

func (r refusal) run(t *testing.T) {
	t.Run(r.call+" "+r.says, func(t *testing.T) {
		refuse(t, r.call)
		denied := func(err error) bool { return has(err, windows.ERROR_ACCESS_DENIED) || has(err, 0x80070005) } // as the second and the first API report it
		if err := r.do(); err == nil || !denied(err) || !strings.Contains(err.Error(), r.says) {
			t.Errorf("%v, want %q and that access is denied", err, r.says)
		}
	})
}

// TestRefused: if HNS refuses a call, the error says what was tried; the result is never empty, and nothing panics.
func TestRefused(t *testing.T) {
	b, pod := withBridge(t)
	c, ctx := NewClient(), t.Context()
	routed, another := b, b
	routed.Routes = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	another.Name, another.Subnet = "refused-other", netip.MustParsePrefix("10.244.72.0/24")
	balancer := LoadBalancer{VIP: netip.MustParseAddr("10.96.0.77"), Protocol: 6, ExternalPort: 80, InternalPort: 80, Endpoints: []ID{pod.ID}}
	makeBridge := func(b Bridge) func() error { return func() error { _, err := MakeBridge(b); return err } }
	for _, one := range []refusal{
		{"HcnEnumerateNetworks", "cannot look for network", makeBridge(b)},
		{"HcnCreateNetwork", "cannot create network refused-other", makeBridge(another)},
		{"HcnEnumerateNetworks", "cannot look for network", func() error { return RemoveBridge(b.Name) }},
		{"HcnDeleteNetwork", "cannot delete network", func() error { return RemoveBridge(b.Name) }},
		{"HcnEnumerateEndpoints", "cannot list the endpoints", func() error { return JoinBridge(b, false) }},
		{"HcnModifyEndpoint", "cannot add routes to endpoint", func() error { return JoinBridge(routed, false) }},
		{"HNSCall POST /endpoints", "cannot attach the host", func() error { return JoinBridge(b, true) }},
		{"HNSCall GET /endpoints", "cannot list endpoints", func() error { _, err := LocalAddresses(pod.ID); return err }},
		{"HcnEnumerateNetworks", "cannot look for network", func() error { _, err := PodEndpoints(b.Name); return err }},
		{"HNSCall GET /endpoints", "cannot list endpoints", func() error { _, err := PodEndpoints(b.Name); return err }},
		{"HNSCall GET /networks", "cannot read network", func() error { _, err := MakeEndpoint(b.Pods(), pod); return err }},
		{"HNSCall POST /endpoints", "cannot create endpoint", func() error { _, err := MakeEndpoint(b.Pods(), pod); return err }},
		{"HcnDeleteEndpoint", "cannot delete endpoint", func() error { return RemoveEndpoint(pod) }},
		{"HNSCall GET /networks", "cannot list networks", func() error { _, err := RemoveNetwork(b.Name); return err }},
		{"HNSCall GET /endpoints", "cannot list endpoints", func() error { _, err := RemoveNetwork(b.Name); return err }},
		{"HNSCall DELETE /endpoints", "cannot delete endpoint", func() error { _, err := RemoveNetwork(b.Name); return err }},
		{"HNSCall GET /networks", "cannot list networks", func() error { _, err := Exists(b.Name); return err }},
		{"HNSCall GET /networks", "cannot list networks", func() error { return Forget(b.Name) }},
		{"HNSCall GET /endpoints", "cannot list endpoints", func() error { return Forget(b.Name) }},
		{"HNSCall GET /networks", "cannot list networks", func() error { return MakeInternal("refused-other") }},
		{"HNSCall POST /networks", "cannot create network", func() error { return MakeInternal("refused-other") }},
		{"HNSCall GET /networks", "cannot list networks", func() error { return RemoveInternal("refused-other") }},
		{"HcnEnumerateNetworks", "cannot read the network", func() error { _, err := c.Network(ctx, b.Name); return err }},
		{"HNSCall GET /globals", "cannot read the version of HNS", func() error { _, err := c.Network(ctx, b.Name); return err }},
		{"HcnEnumerateEndpoints", "cannot list", func() error { _, err := NewClient().Endpoints(ctx); return err }},
		{"HcnEnumerateLoadBalancers", "cannot list", func() error { _, err := NewClient().LoadBalancers(ctx); return err }},
		{"HcnCreateLoadBalancer", "cannot create", func() error { _, err := c.CreateLoadBalancer(ctx, balancer); return err }},
		{"HcnEnumerateLoadBalancers", "cannot list what HNS has", func() error { _, err := Survey(); return err }},
	} {
		one.run(t)
	}
}

// TestOverlayRefused is TestRefused for overlays.
func TestOverlayRefused(t *testing.T) {
	o := withOverlay(t)
	another := o
	another.Name = "refused-other"
	subnet := RemoteSubnet{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParseAddr("192.168.1.2"), [6]byte{0, 0x15, 0x5d, 0, 0, 2}}
	makeOverlay := func(o Overlay) func() error { return func() error { _, err := MakeOverlay(o); return err } }
	change := func() error { return ChangeSubnets(o.Name, 4096, nil, []RemoteSubnet{subnet}) }
	for _, one := range []refusal{
		{"HNSCall GET /globals", "cannot create network", makeOverlay(o)},
		{"HcnEnumerateNetworks", "cannot look for network", makeOverlay(o)},
		{"HcnCreateNetwork", "cannot create network refused-other", makeOverlay(another)},
		{"HcnDeleteNetwork", "cannot delete network", func() error { return RemoveOverlay(o.Name) }},
		{"HcnEnumerateNetworks", "cannot read network", func() error { _, err := RemoteSubnets(o.Name); return err }},
		{"HcnEnumerateNetworks", "cannot read network", change},
		{"HcnModifyNetwork", "cannot add the route to 10.244.2.0/24", change},
		{"HcnEnumerateNetworks", "cannot read network", func() error { return CompleteEndpoints(o) }},
		{"HcnEnumerateEndpoints", "cannot list the endpoints", func() error { return CompleteEndpoints(o) }},
	} {
		one.run(t)
	}
	o.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")} // learnt later
	for range 2 {
		if err := CompleteEndpoints(o); err != nil {
			t.Error(err)
		}
	}
	if e := named(t, EndpointName("winkube-test", o.Name)); len(e.Policies) != 3 {
		t.Errorf("the pod's endpoint has no route to Services, or two: %s", e.Policies)
	}
}

// TestForgotten: Survey reads all objects, and Forget removes a network with its endpoints, once.
func TestForgotten(t *testing.T) {
	o := withOverlay(t)
	if version, err := Survey(); err != nil || !strings.Contains(version, ".") {
		t.Errorf("version %q, %v", version, err)
	}
	for _, want := range []bool{true, false} {
		if there, err := Exists(o.Name); err != nil || there != want {
			t.Errorf("there: %t, %v, want %t", there, err, want)
		}
		if err := Forget(o.Name); err != nil {
			t.Error(err)
		}
	}
	if _, err := MakeOverlay(o); err != nil { // for the end of this test
		t.Error(err)
	}
}

// TestWatchReturns: while HNS refuses subscriptions, Watch retries until one succeeds.
func TestWatchReturns(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	refuse(t, "HcnRegisterServiceCallback")
	told := make(chan struct{}, 10)
	if err := Watch(ctx, func() { told <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	select {
	case <-told:
		t.Error("HNS refuses, and Watch reports a subscription")
	case <-time.After(returnCheck / 2):
	}
	t.Setenv("WINKUBE_REFUSE", "")
	select {
	case <-told:
	case <-ctx.Done():
		t.Error("HNS is back, and no subscription was made")
	}
}
