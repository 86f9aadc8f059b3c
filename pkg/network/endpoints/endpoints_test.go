package endpoints

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/hns"
)

// overlays is an in-memory HNS with one network.
type overlays struct {
	list    map[hns.ID]hns.PodEndpoint
	running map[string]bool // containers that can be attached; nil: all
	down    error
	made    int
}

func newOverlays() *overlays { return &overlays{list: map[hns.ID]hns.PodEndpoint{}} }

func (o *overlays) PodEndpoints(network string) ([]hns.PodEndpoint, error) {
	if network != theOverlay.Name {
		return nil, o.down
	}
	return slices.Collect(maps.Values(o.list)), o.down
}

func (o *overlays) MakeEndpoint(in hns.PodNetwork, e hns.PodEndpoint) (hns.ID, error) {
	for _, other := range o.list {
		if other.Addr == e.Addr || other.Container == e.Container {
			return hns.ID{}, fmt.Errorf("%s of %s is there", e.Addr, e.Container)
		}
	}
	if o.down != nil || in.Name != theOverlay.Name || !in.Subnet.Contains(e.Addr) || len(e.Attached) > 0 {
		return hns.ID{}, errors.Join(o.down, fmt.Errorf("HNS refuses %+v", e))
	}
	o.made++
	e.ID = hns.IDOf(fmt.Sprint("id-", o.made))
	o.list[e.ID] = e
	return e.ID, nil
}

func (o *overlays) AttachEndpoint(id hns.ID, container string) error {
	e, ok := o.list[id]
	if o.down != nil || !ok || o.running != nil && !o.running[container] {
		return errors.Join(o.down, fmt.Errorf("cannot connect %s to %s", container, id))
	}
	if !slices.Contains(e.Attached, container) {
		e.Attached = append(slices.Clone(e.Attached), container)
	}
	o.list[id] = e
	return nil
}

func (o *overlays) RemoveEndpoint(e hns.PodEndpoint) error {
	delete(o.list, e.ID)
	return o.down
}

var theOverlay = hns.PodNetwork{Name: "winkube.4096", Subnet: netip.MustParsePrefix("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.1")}

// joined returns endpoints on an existing network.
func joined(t *testing.T, host *overlays) *Endpoints {
	t.Helper()
	e := New(host, theOverlay.Name)
	e.Use(theOverlay)
	if err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

func infra(id string) cni.Attachment {
	return cni.Attachment{ContainerID: id, SandboxID: id, Netns: "none"}
}

func member(id, of string) cni.Attachment {
	return cni.Attachment{ContainerID: id, SandboxID: of, Netns: "container:" + of, Borrowed: true}
}

// TestEndpoints: a pod has one endpoint, to which each of its containers is attached, and which is removed with its infra container.
func TestEndpoints(t *testing.T) {
	host := newOverlays()
	e := joined(t, host)
	attached := func(a cni.Attachment, want string) {
		t.Helper()
		addrs, ok := e.Attached(a.ContainerID, a.Netns)
		if got := fmt.Sprint(addrs); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %s, %t, want %q", a.ContainerID, got, ok, want)
		}
	}
	if _, err := e.Add(t.Context(), member("c1", "s1")); err == nil || !strings.Contains(err.Error(), "has no endpoint") {
		t.Errorf("a container before its pod: %v", err)
	}
	s1 := infra("s1")
	s1.DNS = &cni.DNS{Servers: []string{"10.96.0.10"}, Searches: []string{"a.svc.cluster.local"}}
	for _, a := range []cni.Attachment{s1, member("c1", "s1"), member("c2", "s1"), infra("s2"), s1} {
		if _, err := e.Add(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	attached(s1, "[10.244.1.3]")
	attached(member("c2", "s1"), "[10.244.1.3]")
	attached(member("c3", "s1"), "")
	attached(infra("s2"), "[10.244.1.4]")
	if one := host.list[hns.IDOf("id-1")]; fmt.Sprint(one.DNS, one.Searches, one.Attached) != "[10.96.0.10] [a.svc.cluster.local] [s1 c1 c2]" || host.made != 2 {
		t.Errorf("%+v, %d made", one, host.made)
	}
	next := New(host, theOverlay.Name) // after a killed agent
	next.Use(theOverlay)
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	e = next
	attached(member("c1", "s1"), "[10.244.1.3]")
	for _, a := range []cni.Attachment{member("c1", "s1"), s1, s1} {
		if err := e.Del(t.Context(), a.ContainerID, a.Netns); err != nil {
			t.Fatal(err)
		}
	}
	attached(s1, "")
	if len(host.list) != 1 {
		t.Errorf("left are %v", host.list)
	}
	if err := e.Collect(t.Context(), func(context.Context, []string) (map[string]bool, error) { return map[string]bool{"s1": true}, nil }); err != nil || len(host.list) > 0 {
		t.Errorf("%v; of containers that are gone stays %v", err, host.list)
	}
}

// TestEndpointsOfKilledAgent: an endpoint that was created but not attached is attached, not recreated.
func TestEndpointsOfKilledAgent(t *testing.T) {
	host := newOverlays()
	e := joined(t, host)
	host.running = map[string]bool{}
	if _, err := e.Add(t.Context(), infra("s1")); err == nil {
		t.Fatal("a container that does not run was connected")
	}
	if _, ok := e.Attached("s1", "none"); ok || len(host.list) != 1 {
		t.Errorf("attached %t, %v", ok, host.list)
	}
	host.running["s1"] = true
	next := New(host, theOverlay.Name)
	next.Use(theOverlay)
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if addrs, err := next.Add(t.Context(), infra("s1")); err != nil || fmt.Sprint(addrs) != "[10.244.1.3]" || host.made != 1 {
		t.Errorf("%v, %v, %d made", addrs, err, host.made)
	}
}

// TestEndpointsLost: endpoints that a crashed HNS has lost are known once it answers again, and no container gets a second endpoint.
func TestEndpointsLost(t *testing.T) {
	host := newOverlays()
	e := joined(t, host)
	for _, id := range []string{"s1", "s2"} {
		if _, err := e.Add(t.Context(), infra(id)); err != nil {
			t.Fatal(err)
		}
	}
	host.down = hns.ErrDown
	if err := e.Load(t.Context()); !errors.Is(err, hns.ErrDown) {
		t.Error(err)
	}
	if lost := e.Lost(); len(lost) > 0 {
		t.Errorf("HNS does not answer, and %v count as lost", lost)
	}
	host.down = nil
	delete(host.list, hns.IDOf("id-1"))
	if err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lost := e.Lost(); !slices.Equal(lost, []string{"s1"}) {
		t.Errorf("lost are %v", lost)
	}
	if e.Stopped([]string{"s1", "s2"}); len(e.Lost()) > 0 {
		t.Errorf("stopped, and still to be stopped: %v", e.Lost())
	}
	if _, ok := e.Attached("s1", "none"); !ok {
		t.Error("its pod would be given a second endpoint")
	}
	if _, err := e.Add(t.Context(), member("c1", "s1")); err == nil || !strings.Contains(err.Error(), "recreating the pod") {
		t.Error(err)
	}
	host.list[hns.IDOf("id-1")] = hns.PodEndpoint{ID: hns.IDOf("id-1"), Container: "s1", Addr: netip.MustParseAddr("10.244.1.3"), Attached: []string{"s1"}}
	if err := e.Load(t.Context()); err != nil || len(e.Lost()) > 0 {
		t.Errorf("HNS put it back: %v, %v", err, e.Lost())
	}
}

// TestEndpointsAfterRestart: a newly started agent attaches no pod twice, whether HNS answers or not.
func TestEndpointsAfterRestart(t *testing.T) {
	host := newOverlays()
	if _, err := joined(t, host).Add(t.Context(), infra("s1")); err != nil {
		t.Fatal(err)
	}
	next := New(host, theOverlay.Name)
	host.down = hns.ErrDown
	if addrs, ok := next.Attached("s1", "none"); !ok || len(addrs) > 0 {
		t.Errorf("HNS is down: %v, %t", addrs, ok)
	}
	host.down = nil
	if addrs, ok := next.Attached("s1", "none"); !ok || fmt.Sprint(addrs) != "[10.244.1.3]" {
		t.Errorf("HNS is back: %v, %t", addrs, ok)
	}
	if _, err := next.Add(t.Context(), infra("s2")); err == nil || host.made != 1 {
		t.Errorf("an endpoint was made before its network: %v", err)
	}
}
