// Package endpoints connects pods to networks on which the kubelet itself creates the endpoints: overlay networks of Windows' HNS, and bridges whose
// HNS gateway is not the pods'. A pod has one endpoint, named after its infra container, and each of its containers is attached to it.
//
//	cni.Attachment --Add--> HNS endpoint --Load--> Attached, Lost --Del, Collect--> nothing
//
// HNS is the record: a restarted agent finds there what a killed one has begun. Endpoints implements network.Attachments.
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

// HNS manages the endpoints. Only one goroutine calls it at a time.
type HNS interface {
	// PodEndpoints lists the endpoints of pods.
	PodEndpoints(network string) ([]hns.PodEndpoint, error)
	// MakeEndpoint creates an endpoint without attaching it.
	MakeEndpoint(n hns.PodNetwork, e hns.PodEndpoint) (hns.ID, error)
	// AttachEndpoint attaches a running container. An attached container is not an error.
	AttachEndpoint(id hns.ID, container string) error
	// RemoveEndpoint removes an endpoint, attached or not. A missing endpoint is not an error.
	RemoveEndpoint(e hns.PodEndpoint) error
}

// Endpoints are the endpoints of this host's pods on one network. Its methods may be called concurrently.
type Endpoints struct {
	hns  HNS
	name string // of the network

	calls sync.Mutex // held during a call of HNS and the handling of its result; required to change the fields below

	mu      sync.Mutex                 // protects the fields below; not held during calls of HNS
	network hns.PodNetwork             // no Name: it does not exist yet
	loaded  bool                       // HNS was queried at least once
	has     map[string]hns.PodEndpoint // by infra container: HNS' last answer, and our changes since then
	lost    map[string]bool            // infra containers whose endpoint HNS has lost; false: already stopped
	last    netip.Addr                 // last assigned address
}

// New returns the Endpoints on the network of that name, without querying HNS.
func New(h HNS, network string) *Endpoints {
	return &Endpoints{hns: h, name: network, has: map[string]hns.PodEndpoint{}, lost: map[string]bool{}}
}

// Use sets the network once it exists. Until then Add fails.
func (e *Endpoints) Use(n hns.PodNetwork) {
	e.calls.Lock()
	defer e.calls.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.network = n
}

// Load reads the endpoints from HNS. If HNS does not answer, no endpoint counts as lost.
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
		now[container] = before // its pod keeps the address until it is recreated: a second endpoint would not repair the container's network
	}
	e.has, e.loaded = now, true
	return nil
}

// Lost returns the infra containers whose endpoint HNS has lost, sorted, without those already passed to Stopped. They do not get another endpoint.
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

// Stopped records that these containers without endpoint were stopped: Lost does not return them again.
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
		return nil, errors.New("the pods' network in HNS does not exist yet")
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
			return nil, err // the endpoint stays for the next attempt, and is removed with its container
		}
		at.Attached = append(slices.Clone(at.Attached), a.ContainerID)
		e.note(at)
	}
	return []netip.Addr{at.Addr}, nil
}

// make creates a pod's endpoint with the next free address. It does not try an address that HNS refuses twice in a row.
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

// note records an endpoint that we created or changed in HNS. The caller holds calls.
func (e *Endpoints) note(one hns.PodEndpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.has[one.Container] = one
}

// Attached implements network.Attachments. Until HNS has answered once, every container counts as attached: otherwise running pods would be
// recreated.
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

// MapsPorts implements network.Attachments: the kubelet itself serves hostPorts.
func (e *Endpoints) MapsPorts(string) bool { return false }

// Del implements network.Attachments: an endpoint is removed with its infra container; other containers detach by ending.
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

// Collect implements network.Attachments: it removes the endpoints of deleted infra containers. It lists the endpoints first, since a container
// exists before its endpoint.
func (e *Endpoints) Collect(ctx context.Context, existing cni.Existing) error {
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
	there, err := existing(ctx, all)
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
