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

	"github.com/winkube/winkube/pkg/pod"
)

// stopAfter is how long a container is without connection before it is stopped: an HNS that has just started may still restore its endpoints
// (kubernetes/kubernetes#139519).
const stopAfter = 3 * time.Second

// stopsAtOnce is how many containers are stopped at a time: the last shall not be without network for as long as the others take to end.
const stopsAtOnce = 10

// repairer repairs what pods have lost of their connection to a network of the engine.
type repairer interface {
	// repair is called after each comparison that found n. What it cannot repair it stops, once each. An error that wraps a *Pending says which
	// containers are without connection, and for how long they are left alone. Idempotent.
	repair(ctx context.Context, n pod.EngineNetwork) error
}

// newRepairer returns the one of the system.
func newRepairer(s shared) repairer {
	if s.cfg.Platform.OS == "windows" {
		return &hnsRepairer{windows: s.Windows, engine: s.Engine, stopper: newStopper(s)}
	}
	return &engineRepairer{engine: s.Engine, pods: s.Pods, places: s.places, stopper: newStopper(s)}
}

// reconnect repairs what pods have lost of the network that was found. One that was made just now had none.
func reconnect(ctx context.Context, r repairer, made Made) error {
	if made.Found == nil {
		return nil
	}
	return r.repair(ctx, *made.Found)
}

// hnsRepairer is for Windows. HNS loses endpoints when it crashes (projectcalico/calico#5164, docker/for-win#12425), which neither it nor the
// engine restores for a container that runs.
type hnsRepairer struct {
	windows Windows
	engine  Engine
	stopper *stopper
}

func (r *hnsRepairer) repair(ctx context.Context, n pod.EngineNetwork) error {
	members, err := r.engine.Members(ctx, n.Name) // first: whoever is in it was connected before
	if err != nil || len(members) == 0 {
		r.stopper.cut = nil
		return err
	}
	var have []netip.Addr
	id := n.Options[optionHNS]
	if id != "" {
		if have, err = r.windows.Addresses(id); err != nil {
			return err
		}
		r.stopper.cut = r.missing(members, have)
	}
	return r.stopper.stop(ctx, n.Name)
}

// missing are the members none of whose addresses HNS has, and since when.
func (r *hnsRepairer) missing(members map[string][]netip.Addr, have []netip.Addr) map[string]time.Time {
	cut := map[string]time.Time{}
	for id, addrs := range members {
		if len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(have, a) }) {
			cut[id] = r.stopper.cutSince(id)
		}
	}
	return cut
}

// engineRepairer is for Linux: it puts pods that were taken off the engine's network back on it, with the addresses that they had. That may fail:
// an address may be another pod's by now, and a network whose range the engine chose grants no wishes.
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

// stopper stops containers that were without connection for long enough; their pods' workers recreate them. One goroutine uses it.
type stopper struct {
	engine Engine
	clock  clock.Clock
	node   Node
	cut    map[string]time.Time // containers without connection, since when
}

func newStopper(s shared) *stopper { return &stopper{engine: s.Engine, clock: s.Clock, node: s.Node} }

// cutSince is when a container that is without connection was first seen so.
func (s *stopper) cutSince(id string) time.Time {
	if before, ok := s.cut[id]; ok {
		return before
	}
	return s.clock.Now()
}

// stop stops those of cut that were without connection for stopAfter, and takes them out of cut. The error names the others.
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
