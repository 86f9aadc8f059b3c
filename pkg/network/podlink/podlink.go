// Package podlink creates the interfaces of Linux pods if the kubelet does that instead of the engine: pairs of the pod's eth0 and a port of the
// node's bridge.
//
//	cni.Attachment, free address --Steps--> Kernel --Ports--> Records, faults --Load, Repair--> Kernel
//
// The kernel has the record: a finished port's alias names the container and its addresses. A port without one is incomplete and is removed, so that
// a kubelet that dies between any two steps leaves nothing, and the next one assigns no address twice. Links implements network.Attachments.
package podlink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/cni"
)

// ErrGone says that a container's namespace no longer exists.
var ErrGone = errors.New("the container's network namespace is gone")

// Kernel manages the interfaces. Its methods may be called concurrently, except for the same port.
type Kernel interface {
	// Ports lists the host's ends of pods' interfaces, including incomplete ones.
	Ports() ([]Port, error)
	// MakeBridge creates the bridge, or enables an existing one. A recreated bridge gets the last hardware address that this program has seen on it.
	// Idempotent.
	MakeBridge(n Network) error
	// RemoveBridge removes the bridge and forgets its hardware address. A missing bridge is not an error. Ports remain.
	RemoveBridge(name string) error
	// Do takes steps in order, for a container with the namespace netns. The error wraps ErrGone if that no longer exists.
	Do(steps []Step, container, netns string) error
	// Repair repairs a port. A missing port is not an error.
	Repair(n Network, r Repair) error
	// Watch calls gone with the name of each removed port, until ctx ends. gone does not block.
	Watch(ctx context.Context, gone func(port string)) error
}

// Others are the addresses of the ranges that an engine assigns on a network with the same bridge.
type Others struct {
	Addrs []netip.Addr
	// Gives says that the engine may assign more: the lowest free ones.
	Gives bool
}

// Links are the interfaces of this host's pods. Its methods may be called concurrently.
type Links struct {
	kernel Kernel
	adding sync.RWMutex // read-locked while a port is created: the holder of the write lock sees only abandoned incomplete ports

	mu      sync.Mutex
	network Network // no Bridge: it does not exist yet
	others  Others
	loaded  bool
	has     map[string]Record   // by container
	lost    map[string]bool     // containers whose port others have removed
	leaving map[string]bool     // ports that we are removing
	busy    map[netip.Addr]bool // of ports that are being created
	last    map[bool]netip.Addr // last assigned address, by whether it is IPv4
}

// New returns the Links of kernel. It does not query it yet.
func New(kernel Kernel) *Links {
	return &Links{kernel: kernel, has: map[string]Record{}, lost: map[string]bool{}, leaving: map[string]bool{}, busy: map[netip.Addr]bool{},
		last: map[bool]netip.Addr{}}
}

// Use sets the network once it exists, and the addresses that others use. Until then Add fails.
func (l *Links) Use(n Network, others Others) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.network, l.others = n, others
}

// Load reads the ports from the kernel, and removes incomplete ones of a former run.
func (l *Links) Load(context.Context) error {
	l.adding.Lock()
	defer l.adding.Unlock()
	ports, err := l.kernel.Ports()
	if err != nil {
		return err
	}
	l.mu.Lock()
	network, loaded := l.network, l.loaded
	l.mu.Unlock()
	var errs []error
	for _, r := range Compare(network, ports) {
		if !r.Remove && network.Bridge == "" {
			continue
		}
		if r.Remove {
			klog.InfoS("Removing a pod's interface that was only half made", "interface", r.Port)
		} else {
			klog.InfoS("Repairing the port of a pod", "interface", r.Port)
		}
		errs = append(errs, l.kernel.Repair(network, r))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := map[string]Record{}
	slices.SortFunc(ports, func(a, b Port) int { return a.Index - b.Index })
	for _, p := range ports {
		r, done := ParseAlias(p.Alias)
		if !done {
			continue
		}
		now[r.Container] = r
		delete(l.lost, r.Container)
		for _, a := range r.Addrs {
			if !loaded { // the newest port has the last assigned address
				l.last[a.Is4()] = a
			}
		}
	}
	for container, before := range l.has {
		if _, there := now[container]; !there {
			l.lost[container] = true
			now[container] = before // until Repair: its address stays reserved
		}
	}
	l.has, l.loaded = now, true
	return errors.Join(errs...)
}

// LoadOnce reads the ports from the kernel unless Load has succeeded before.
func (l *Links) LoadOnce(ctx context.Context) error {
	l.mu.Lock()
	loaded := l.loaded
	l.mu.Unlock()
	if loaded {
		return nil
	}
	return l.Load(ctx)
}

// Records returns the connected containers, sorted by container.
func (l *Links) Records() []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.has), func(a, b Record) int {
		if a.Container < b.Container {
			return -1
		}
		return 1
	})
}

// Lost says whether a removed port belonged to a container and was removed by others.
func (l *Links) Lost(port string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving[port] {
		return false
	}
	for container := range l.has {
		if PortName(container) == port {
			return true
		}
	}
	return false
}

// Repair recreates lost ports of containers with the same addresses, and forgets those whose namespace is gone. It returns the repaired ones.
func (l *Links) Repair(context.Context) (repaired []Record, err error) {
	l.mu.Lock()
	lost := slices.Sorted(maps.Keys(l.lost))
	l.mu.Unlock()
	var errs []error
	for _, container := range lost {
		r, err := l.restore(container)
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot restore the interface of container %.12s: %w", container, err))
		}
		if r != nil {
			repaired = append(repaired, *r)
		}
	}
	return repaired, errors.Join(errs...)
}

// restore recreates a lost port; nil: there is nothing left to connect, or it failed.
func (l *Links) restore(container string) (*Record, error) {
	l.adding.RLock()
	defer l.adding.RUnlock()
	l.mu.Lock()
	r, still := l.has[container]
	still = still && l.lost[container]
	network := l.network
	l.mu.Unlock()
	if !still {
		return nil, nil
	}
	err := l.kernel.Do(Steps(network, r, nil), container, r.Netns)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, ErrGone):
		delete(l.has, container)
		delete(l.lost, container)
		return nil, nil
	case err != nil:
		return nil, errors.Join(err, l.kernel.Repair(network, Repair{Port: PortName(container), Remove: true}))
	}
	delete(l.lost, container)
	return &r, nil
}

// Add implements network.Attachments.
func (l *Links) Add(_ context.Context, a cni.Attachment) ([]netip.Addr, error) {
	l.adding.RLock()
	defer l.adding.RUnlock()
	l.mu.Lock()
	network := l.network
	old, known := l.has[a.ContainerID]
	l.mu.Unlock()
	switch {
	case network.Bridge == "":
		return nil, errors.New("the pods' bridge does not exist yet")
	case known && old.Netns == a.Netns:
		return old.Addrs, nil
	case known: // it was restarted, and has another namespace
		if err := l.remove(a.ContainerID); err != nil {
			return nil, err
		}
	}
	r := Record{Container: a.ContainerID, Netns: a.Netns}
	var err error
	if r.Addrs, err = l.reserve(network, old.Addrs); err != nil {
		return nil, err
	}
	defer l.release(r.Addrs)
	if err := l.kernel.Do(Steps(network, r, a.Sysctls), a.ContainerID, a.Netns); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot connect the pod to %s: %w", network.Bridge, err),
			l.kernel.Repair(network, Repair{Port: PortName(a.ContainerID), Remove: true}))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.has[r.Container] = r
	return r.Addrs, nil
}

// reserve chooses an address of each family: the container's former ones, or the next free ones.
func (l *Links) reserve(n Network, had []netip.Addr) (out []netip.Addr, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	used := maps.Clone(l.busy)
	for _, r := range l.has {
		for _, a := range r.Addrs {
			used[a] = true
		}
	}
	for _, a := range l.others.Addrs {
		used[a] = true
	}
	for _, r := range n.Ranges {
		i := slices.IndexFunc(had, func(a netip.Addr) bool { return r.Subnet.Contains(a) && !used[a] })
		if i >= 0 {
			out = append(out, had[i])
			continue
		}
		four := r.Subnet.Addr().Is4()
		a, err := r.free(func(a netip.Addr) bool { return used[a] }, l.last[four], l.others.Gives)
		if err != nil {
			return nil, err
		}
		l.last[four] = a
		out = append(out, a)
	}
	for _, a := range out {
		l.busy[a] = true
	}
	return out, nil
}

func (l *Links) release(addrs []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range addrs {
		delete(l.busy, a)
	}
}

// Attached implements network.Attachments. Until the kernel has answered once, every container counts as connected: otherwise running pods would be
// recreated.
func (l *Links) Attached(id, netns string) ([]netip.Addr, bool) {
	if err := l.LoadOnce(context.Background()); err != nil {
		klog.ErrorS(err, "Cannot read a container's address", "container", id)
		return nil, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r, there := l.has[id]
	if !there || r.Netns != netns {
		return nil, false
	}
	return r.Addrs, true
}

// MapsPorts implements network.Attachments: the kubelet itself serves hostPorts.
func (l *Links) MapsPorts(string) bool { return false }

// Del implements network.Attachments.
func (l *Links) Del(_ context.Context, id, _ string) error {
	l.adding.RLock()
	defer l.adding.RUnlock()
	return l.remove(id)
}

// remove removes a container's port, and with it the whole connection. The caller holds adding.
func (l *Links) remove(id string) error {
	l.mu.Lock()
	_, known := l.has[id]
	network, port := l.network, PortName(id)
	if known {
		l.leaving[port] = true
	}
	l.mu.Unlock()
	if !known {
		return nil
	}
	err := l.kernel.Repair(network, Repair{Port: port, Remove: true})
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leaving, port)
	if err != nil {
		return fmt.Errorf("cannot remove the interface of container %.12s: %w", id, err)
	}
	delete(l.has, id)
	delete(l.lost, id)
	return nil
}

// Collect implements network.Attachments: it removes the ports of deleted containers. It asks for the containers last, since a container exists before
// its port.
func (l *Links) Collect(ctx context.Context, existing cni.Existing) error {
	if err := l.LoadOnce(ctx); err != nil {
		return err
	}
	all := l.Records()
	if len(all) == 0 {
		return nil
	}
	var ids []string
	for _, r := range all {
		ids = append(ids, r.Container)
	}
	there, err := existing(ctx, ids)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if !there[r.Container] {
			klog.InfoS("Removing the interface of a removed container", "container", r.Container, "addresses", r.Addrs)
			errs = append(errs, l.Del(ctx, r.Container, ""))
		}
	}
	return errors.Join(errs...)
}
