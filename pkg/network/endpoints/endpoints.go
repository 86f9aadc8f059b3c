// Package endpoints gives pods their network where the kubelet itself makes their endpoints: on overlay networks of Windows' HNS. A pod has one
// endpoint, named by its infra container, to which each of its containers is connected.
//
//	cni.Attachment --Add--> HNS endpoint --Load--> Attached, Lost --Del, Collect--> nothing
//
// What HNS has is the record: an agent that was killed finds there what it has begun. Endpoints implements network.Attachments.
package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/hns"
)

// HNS has the endpoints. It is called by one goroutine at a time.
type HNS interface {
	// PodEndpoints lists the endpoints of pods.
	PodEndpoints(network string) ([]hns.PodEndpoint, error)
	// MakeEndpoint makes an endpoint that is connected to nothing.
	MakeEndpoint(o hns.Overlay, e hns.PodEndpoint) (id string, err error)
	// AttachEndpoint connects a running container; connected already is no error.
	AttachEndpoint(id, container string) error
	// RemoveEndpoint removes an endpoint, connected or not; gone is no error.
	RemoveEndpoint(e hns.PodEndpoint) error
}

// Endpoints are those of this host's pods on one network. Its methods may be called concurrently.
type Endpoints struct {
	hns  HNS
	name string // of the network

	calls sync.Mutex // held during a call of HNS and what follows from it; required to change the fields below

	mu      sync.Mutex                 // protects the fields below; not held during calls of HNS
	network hns.Overlay                // no Name: there is none yet
	loaded  bool                       // HNS was asked once
	has     map[string]hns.PodEndpoint // by infra container, as HNS last said, and what we did since
	lost    map[string]bool            // infra containers whose endpoint HNS has lost; false: they were stopped
	last    netip.Addr                 // that was given
}

// New returns the Endpoints on the network of that name, without asking HNS.
func New(h HNS, network string) *Endpoints {
	return &Endpoints{hns: h, name: network, has: map[string]hns.PodEndpoint{}, lost: map[string]bool{}}
}

// Use says that the network is there. Until then nothing is added.
func (e *Endpoints) Use(o hns.Overlay) {
	e.calls.Lock()
	defer e.calls.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.network = o
}

// Load asks HNS what there is. An HNS that does not answer has lost nothing.
func (e *Endpoints) Load(context.Context) error {
	e.calls.Lock()
	defer e.calls.Unlock()
	list, err := e.hns.PodEndpoints(e.name)
	if err != nil {
		return err
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
		if _, known := e.lost[container]; !known {
			e.lost[container] = true
		}
		now[container] = before // its pod has it until it is recreated: a second endpoint would not repair the container's network
	}
	e.has, e.loaded = now, true
	return nil
}

// Lost are the infra containers whose endpoint HNS has lost, sorted, without those that Stopped has named. They do not get another endpoint.
func (e *Endpoints) Lost() (containers []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for container, waits := range e.lost {
		if waits {
			containers = append(containers, container)
		}
	}
	slices.Sort(containers)
	return containers
}

// Stopped says that these containers without endpoint were stopped: Lost does not name them again.
func (e *Endpoints) Stopped(containers []string) {
	e.calls.Lock()
	defer e.calls.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, container := range containers {
		if _, lost := e.lost[container]; lost {
			e.lost[container] = false
		}
	}
}

// Add implements network.Attachments.
func (e *Endpoints) Add(_ context.Context, a cni.Attachment) ([]netip.Addr, error) {
	e.calls.Lock()
	defer e.calls.Unlock()
	if e.network.Name == "" {
		return nil, errors.New("the overlay network does not exist yet")
	}
	at, there := e.has[a.SandboxID]
	_, lost := e.lost[a.SandboxID]
	switch {
	case lost:
		return nil, fmt.Errorf("HNS has lost the endpoint %s of the pod; recreating the pod", at.Addr)
	case !there && a.Borrowed:
		return nil, fmt.Errorf("the pod's infra container %.12s has no endpoint", a.SandboxID)
	case !there:
		var err error
		if at, err = e.make(a); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(at.Attached, a.ContainerID) {
		if err := e.hns.AttachEndpoint(at.ID, a.ContainerID); err != nil {
			return nil, err // the endpoint stays for the next attempt, and goes with its container
		}
		at.Attached = append(slices.Clone(at.Attached), a.ContainerID)
		e.note(at)
	}
	return []netip.Addr{at.Addr}, nil
}

// make makes a pod's endpoint, with the next free address. An address that HNS refuses is not tried twice in a row.
func (e *Endpoints) make(a cni.Attachment) (hns.PodEndpoint, error) {
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
	if one.ID, err = e.hns.MakeEndpoint(e.network, one); err != nil {
		return hns.PodEndpoint{}, err
	}
	e.note(one)
	return one, nil
}

// note remembers what we changed in HNS. The caller holds calls.
func (e *Endpoints) note(one hns.PodEndpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.has[one.Container] = one
}

// Attached implements network.Attachments. Until HNS has answered once, every container counts as connected: what runs would be recreated.
func (e *Endpoints) Attached(id, netns string) ([]netip.Addr, bool) {
	e.mu.Lock()
	loaded := e.loaded
	e.mu.Unlock()
	if !loaded {
		if err := e.Load(context.Background()); err != nil {
			klog.ErrorS(err, "Cannot read a container's address", "container", id)
			return nil, true
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	infra := id
	if shared, ok := cni.SharedNetns(netns); ok {
		infra = shared
	}
	at, there := e.has[infra]
	if !there || !slices.Contains(at.Attached, id) {
		return nil, false
	}
	return []netip.Addr{at.Addr}, true
}

// MapsPorts implements network.Attachments: the kubelet serves hostPorts itself.
func (e *Endpoints) MapsPorts(string) bool { return false }

// Del implements network.Attachments: an endpoint goes with its infra container; another container leaves it by ending.
func (e *Endpoints) Del(_ context.Context, id, netns string) error {
	e.calls.Lock()
	defer e.calls.Unlock()
	if infra, ok := cni.SharedNetns(netns); ok {
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
	if err := e.hns.RemoveEndpoint(at); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.has, id)
	delete(e.lost, id)
	return nil
}

// Collect implements network.Attachments: it removes the endpoints of infra containers that no longer exist. The endpoints are listed first, since a
// container is there before its endpoint.
func (e *Endpoints) Collect(ctx context.Context, exists func(context.Context) (map[string]bool, error)) error {
	if err := e.Load(ctx); err != nil {
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
			klog.InfoS("Removing the endpoint of a removed container", "container", container)
			errs = append(errs, e.Del(ctx, container, ""))
		}
	}
	return errors.Join(errs...)
}
