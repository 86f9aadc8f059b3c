package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Overlays is what a Host has beside where the system itself has overlay networks (HNS of Windows).
type Overlays interface {
	// MakeOverlay makes the network, or adopts it, and returns the hardware address at which other hosts reach its pods. An error that wraps
	// hns.ErrNoHostRoute comes with that: all else is as it should be.
	MakeOverlay(o hns.Overlay) (vxlan.MAC, error)
	// RemoveOverlay removes the network with its endpoints; gone is no error.
	RemoveOverlay(name string) error
	// PodEndpoints lists the endpoints of pods.
	PodEndpoints(network string) ([]hns.PodEndpoint, error)
	// MakeEndpoint makes an endpoint that is connected to nothing.
	MakeEndpoint(o hns.Overlay, e hns.PodEndpoint) (id string, err error)
	// AttachEndpoint connects a running container; connected already is no error.
	AttachEndpoint(id, container string) error
	// RemoveEndpoint removes an endpoint, connected or not; gone is no error.
	RemoveEndpoint(e hns.PodEndpoint) error
}

// endpoints gives pods their network where the kubelet itself makes their endpoints: one for a pod, named by its infra container, to which each of
// its containers is connected. What HNS has is the record: an agent that was killed finds there what it has begun. It implements Plugins.
type endpoints struct {
	host Overlays
	name string // of the network

	calls sync.Mutex // held over a call of HNS and what follows from it; whoever changes what stands below holds it

	mu      sync.Mutex                 // of what stands below; held over no call
	network hns.Overlay                // no Name: there is none yet
	loaded  bool                       // HNS was asked once
	has     map[string]hns.PodEndpoint // by infra container, as HNS last said, and what we did since
	lost    map[string]bool            // infra containers whose endpoint HNS has lost; false: they were ended
	last    netip.Addr                 // that was given
}

func newEndpoints(host Overlays, network string) *endpoints {
	return &endpoints{host: host, name: network, has: map[string]hns.PodEndpoint{}, lost: map[string]bool{}}
}

// use says that the network is there.
func (e *endpoints) use(o hns.Overlay) {
	e.calls.Lock()
	defer e.calls.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.network = o
}

// Load implements Plugins: it asks HNS what there is. An HNS that does not answer has lost nothing.
func (e *endpoints) Load(context.Context) (name, file string, err error) {
	e.calls.Lock()
	defer e.calls.Unlock()
	list, err := e.host.PodEndpoints(e.name)
	if err != nil {
		return "", "", err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := make(map[string]hns.PodEndpoint, len(list))
	for _, one := range list {
		now[one.Container] = one
		delete(e.lost, one.Container)
	}
	for container, before := range e.has {
		if _, there := now[container]; there {
			continue
		}
		if _, told := e.lost[container]; !told {
			e.lost[container] = true
		}
		now[container] = before // its pod has it until it is made anew: a second endpoint would not mend the container's network
	}
	e.has, e.loaded = now, true
	return e.name, "HNS", nil
}

// cut are the infra containers whose endpoint is lost, and since when: those of before keep their time.
func (e *endpoints) cut(before map[string]time.Time, now time.Time) map[string]time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string]time.Time{}
	for container, waits := range e.lost {
		if !waits {
			continue
		}
		out[container] = now
		if since, known := before[container]; known {
			out[container] = since
		}
	}
	return out
}

// ended says of which containers without endpoint no more is to be told: all that cut has told of and that are not in left.
func (e *endpoints) ended(left map[string]time.Time) {
	e.calls.Lock()
	defer e.calls.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for container := range e.lost {
		_, e.lost[container] = left[container]
	}
}

// Add implements Plugins.
func (e *endpoints) Add(_ context.Context, a cni.Attachment) ([]netip.Addr, error) {
	e.calls.Lock()
	defer e.calls.Unlock()
	if e.network.Name == "" {
		return nil, errors.New("the overlay network is not there yet")
	}
	at, there := e.has[a.SandboxID]
	_, lost := e.lost[a.SandboxID]
	switch {
	case lost:
		return nil, fmt.Errorf("HNS has lost the endpoint %s of the pod, which is made anew", at.Addr)
	case !there && a.Borrowed:
		return nil, fmt.Errorf("the pod's infra container %.12s has no endpoint", a.SandboxID)
	case !there:
		var err error
		if at, err = e.make(a); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(at.Attached, a.ContainerID) {
		if err := e.host.AttachEndpoint(at.ID, a.ContainerID); err != nil {
			return nil, err // an endpoint that was made is tried again, and goes with its container
		}
		at.Attached = append(slices.Clone(at.Attached), a.ContainerID)
		e.note(at)
	}
	return []netip.Addr{at.Addr}, nil
}

// make makes a pod's endpoint, with the next free address. One that HNS refuses is not tried twice in a row.
func (e *endpoints) make(a cni.Attachment) (hns.PodEndpoint, error) {
	taken := make(map[netip.Addr]bool, len(e.has))
	for _, other := range e.has {
		taken[other.Addr] = true
	}
	addr, err := e.network.Free(taken, e.last)
	if err != nil {
		return hns.PodEndpoint{}, err
	}
	e.last = addr
	one := hns.PodEndpoint{Container: a.SandboxID, Addr: addr}
	if a.DNS != nil {
		one.DNS, one.Searches = a.DNS.Servers, a.DNS.Searches
	}
	if one.ID, err = e.host.MakeEndpoint(e.network, one); err != nil {
		return hns.PodEndpoint{}, err
	}
	e.note(one)
	return one, nil
}

// note takes in what HNS has by our doing. The caller holds calls.
func (e *endpoints) note(one hns.PodEndpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.has[one.Container] = one
}

// Attached implements Plugins. While HNS has never answered, nobody is taken for a container without network: what runs would be made anew.
func (e *endpoints) Attached(id, netns string) ([]netip.Addr, bool) {
	e.mu.Lock()
	loaded := e.loaded
	e.mu.Unlock()
	if !loaded {
		if _, _, err := e.Load(context.Background()); err != nil {
			klog.ErrorS(err, "It is not known which address a container has", "container", id)
			return nil, true
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	infra := id
	if shared, ok := sharedWith(netns); ok {
		infra = shared
	}
	at, there := e.has[infra]
	if !there || !slices.Contains(at.Attached, id) {
		return nil, false
	}
	return []netip.Addr{at.Addr}, true
}

// MapsPorts implements Plugins: the kubelet serves hostPorts itself.
func (e *endpoints) MapsPorts(string) bool { return false }

// Del implements Plugins: an endpoint goes with its infra container; another container leaves it by ending.
func (e *endpoints) Del(_ context.Context, id, netns string) error {
	e.calls.Lock()
	defer e.calls.Unlock()
	if infra, ok := sharedWith(netns); ok {
		if at, there := e.has[infra]; there {
			at.Attached = slices.DeleteFunc(slices.Clone(at.Attached), func(c string) bool { return c == id })
			e.note(at)
		}
		return nil
	}
	at, there := e.has[id]
	if !there {
		return nil
	}
	if err := e.host.RemoveEndpoint(at); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.has, id)
	delete(e.lost, id)
	return nil
}

// Check implements Plugins: Load sees what is gone.
func (e *endpoints) Check(context.Context, string) error { return nil }

// Records implements Plugins: nothing is noted but in HNS.
func (e *endpoints) Records() []cni.Attachment { return nil }

// Collect implements Plugins: it removes the endpoints of infra containers that do not exist any more. The list comes first, since a container is
// there before its endpoint.
func (e *endpoints) Collect(ctx context.Context, exists func(context.Context) (map[string]bool, error)) error {
	if _, _, err := e.Load(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	var all []string
	for container := range e.has {
		all = append(all, container)
	}
	e.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	there, err := exists(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, container := range all {
		if !there[container] {
			klog.InfoS("Removing the endpoint of a container that is gone", "container", container)
			errs = append(errs, e.Del(ctx, container, ""))
		}
	}
	return errors.Join(errs...)
}
