package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
)

// stopAfter is how long a container must be disconnected before it is stopped: an HNS that has just started may still restore its endpoints
// (kubernetes/kubernetes#139519).
const stopAfter = 3 * time.Second

// stopsAtOnce is how many containers are stopped in parallel, so that the last one does not wait without network for all others to end.
const stopsAtOnce = 10

// repairer repairs pods' lost connections to a network of the engine.
type repairer interface {
	// repair is called after each comparison that found n. It stops, once each, the containers that it cannot repair. An error that wraps a *Pending
	// names the disconnected containers and how long repair waits before stopping them. Idempotent.
	repair(ctx context.Context, n pod.EngineNetwork) error
}

// newRepairer returns the repairer of the system.
func newRepairer(s shared) repairer {
	if s.cfg.Platform.OS == "windows" {
		return &hnsRepairer{windows: s.Windows, engine: s.Engine, stopper: newStopper(s)}
	}
	return &engineRepairer{engine: s.Engine, pods: s.Pods, places: s.places, stopper: newStopper(s)}
}

// reconnect repairs pods' lost connections to the network that was found. A network that was just created has none.
func reconnect(ctx context.Context, r repairer, made Made) error {
	if made.Found == nil {
		return nil
	}
	return r.repair(ctx, *made.Found)
}

// hnsRepairer is for Windows. HNS loses endpoints when it crashes (projectcalico/calico#5164, docker/for-win#12425). Neither HNS nor the engine
// restores them for a running container.
type hnsRepairer struct {
	windows Windows
	engine  Engine
	stopper *stopper
}

func (r *hnsRepairer) repair(ctx context.Context, n pod.EngineNetwork) error {
	members, err := r.engine.Members(ctx, n.Name) // first: all its members were connected before
	if err != nil || len(members) == 0 {
		r.stopper.cut = nil
		return err
	}
	var have []netip.Addr
	id := n.Options[optionHNS]
	if id != "" {
		if have, err = r.windows.Addresses(hns.IDOf(id)); err != nil {
			return err
		}
		r.stopper.cut = r.missing(members, have)
	}
	return r.stopper.stop(ctx, n.Name)
}

// missing returns the members that have no address in HNS, and since when.
func (r *hnsRepairer) missing(members map[string][]netip.Addr, have []netip.Addr) map[string]time.Time {
	cut := map[string]time.Time{}
	for id, addrs := range members {
		if len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(have, a) }) {
			cut[id] = r.stopper.cutSince(id)
		}
	}
	return cut
}

// engineRepairer is for Linux: it reconnects pods that were disconnected from the engine's network, with their former addresses. That may fail: an
// address may now be another pod's, and a network whose range the engine chose does not accept requests for addresses.
type engineRepairer struct {
	engine  Engine
	pods    Pods
	places  *placements
	stopper *stopper
}

func (r *engineRepairer) repair(ctx context.Context, n pod.EngineNetwork) error {
	lost := r.places.disconnected(n.Name)
	if len(lost) == 0 {
		r.stopper.cut = nil
		return nil
	}
	members, err := r.engine.Members(ctx, n.Name)
	if err != nil {
		return err
	}
	cut := map[string]time.Time{}
	for _, at := range lost {
		if _, there := members[at.sandbox]; there {
			continue
		}
		if err := r.engine.Connect(ctx, n.Name, at.sandbox, at.addrs); err != nil {
			klog.ErrorS(err, "Cannot reconnect a pod that was disconnected from its network; stopping it soon", "pod", at.namespace+"/"+at.name, "network", n.Name)
			cut[at.sandbox] = r.stopper.cutSince(at.sandbox)
			continue
		}
		klog.InfoS("Reconnected a pod that was disconnected from its network", "pod", at.namespace+"/"+at.name, "network", n.Name, "addresses", at.addrs)
		r.pods.Event(at.namespace, at.name, string(at.uid), v1.EventTypeWarning, "NetworkReconnected",
			fmt.Sprintf("Reconnected the pod to the engine's network %q with the same addresses %v, after it had been disconnected", n.Name, at.addrs))
	}
	r.stopper.cut = cut
	return r.stopper.stop(ctx, n.Name)
}

// stopper stops containers that were disconnected for too long; their pods' workers recreate them. Only one goroutine uses it.
type stopper struct {
	engine Engine
	clock  clock.Clock
	node   Node
	cut    map[string]time.Time // disconnected containers, since when
}

func newStopper(s shared) *stopper { return &stopper{engine: s.Engine, clock: s.Clock, node: s.Node} }

// cutSince is when a container was first seen disconnected.
func (s *stopper) cutSince(id string) time.Time {
	if before, ok := s.cut[id]; ok {
		return before
	}
	return s.clock.Now()
}

// stop stops those of cut that were disconnected for stopAfter, and removes them from cut. The error names the others.
func (s *stopper) stop(ctx context.Context, network string) error {
	var errs []error
	var over []string
	now := s.clock.Now()
	for id, begin := range s.cut {
		if left := stopAfter - now.Sub(begin); left > 0 {
			errs = append(errs, &Pending{left, fmt.Errorf("container %.12s has lost its connection to network %q; stopping it if that lasts %s", id, network, stopAfter)})
			continue
		}
		over = append(over, id)
	}
	results := make([]error, len(over))
	var group errgroup.Group
	group.SetLimit(stopsAtOnce)
	for i, id := range over {
		klog.InfoS("Stopping a container that lost its network connection; it will be recreated", "container", id, "network", network)
		group.Go(func() error {
			results[i] = s.engine.Stop(ctx, id)
			return nil
		})
	}
	_ = group.Wait() // each has its own result
	stopped := 0
	for i, err := range results {
		if err == nil {
			stopped++
			delete(s.cut, over[i])
		}
	}
	if stopped > 0 {
		s.node.Event(v1.EventTypeWarning, "EndpointsLost", fmt.Sprintf("Recreating %d containers that lost their connection to network %q", stopped, network))
	}
	return errors.Join(append(errs, results...)...)
}
