package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
)

// rejoin is how long a container is without connection before it is ended: an HNS that has just started may still be putting its endpoints
// back (kubernetes/kubernetes#139519).
const rejoin = 3 * time.Second

// pending is what time may mend, or is up to us when that has passed: no failure to back off from.
type pending struct {
	in time.Duration // until then
	error
}

// heal mends what pods have lost of their connection: on Linux, where somebody took them off the engine's network, by putting them back on it.
// What cannot be mended is ended, once each, and what ended is for the pods' workers to start again. The error says that some are cut and for how
// long nothing is done.
func (m *Manager) heal(ctx context.Context, n pod.EngineNetwork) error {
	var err error
	if m.cut, err = m.lost(ctx, n); err != nil || len(m.cut) == 0 {
		return err
	}
	return m.end(ctx, m.cut, m.parts.Clock.Now(), n.Name)
}

// lost are the containers that are without connection, and since when. Windows' HNS loses endpoints when it crashes (projectcalico/calico#5164,
// docker/for-win#12425), which neither it nor the engine brings back for a container that runs.
func (m *Manager) lost(ctx context.Context, n pod.EngineNetwork) (map[string]time.Time, error) {
	if m.cfg.Platform.OS != "windows" {
		return m.reconnect(ctx, n)
	}
	members, err := m.parts.Engine.Members(ctx, n.Name) // first: whoever is in it was connected before
	if err != nil || len(members) == 0 {
		return nil, err
	}
	have, known, err := m.parts.Host.Connected(ctx, n)
	if err != nil || !known {
		return m.cut, err
	}
	since := map[string]time.Time{}
	for id, addrs := range members {
		if len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(have, a) }) {
			since[id] = m.cutSince(id)
		}
	}
	return since, nil
}

// cutSince is when a container that is cut was seen to be so first.
func (m *Manager) cutSince(id string) time.Time {
	if before, ok := m.cut[id]; ok {
		return before
	}
	return m.parts.Clock.Now()
}

// reconnect puts pods that were taken off the engine's network back on it, with the addresses that they had, and returns those with which that
// fails: an address may be another pod's by now, and a network whose range the engine chose takes no wishes.
func (m *Manager) reconnect(ctx context.Context, n pod.EngineNetwork) (map[string]time.Time, error) {
	cut := m.takenOff(n.Name)
	if len(cut) == 0 {
		return nil, nil
	}
	members, err := m.parts.Engine.Members(ctx, n.Name)
	if err != nil {
		return m.cut, err
	}
	since := map[string]time.Time{}
	for _, at := range cut {
		if _, there := members[at.sandbox]; there {
			continue
		}
		if err := m.parts.Engine.Connect(ctx, n.Name, at.sandbox, at.addrs); err != nil {
			klog.ErrorS(err, "A pod that was taken off its network cannot be put back", "pod", at.namespace+"/"+at.name, "network", n.Name)
			since[at.sandbox] = m.cutSince(at.sandbox)
			continue
		}
		klog.InfoS("A pod that was taken off its network was put back", "pod", at.namespace+"/"+at.name, "network", n.Name, "addresses", at.addrs)
		if m.parts.PodEvent != nil {
			m.parts.PodEvent(at.namespace, at.name, string(at.uid), v1.EventTypeWarning, "NetworkReconnected",
				fmt.Sprintf("The pod had been taken off the engine's network %q and is on it again, with the same addresses %v", n.Name, at.addrs))
		}
	}
	return since, nil
}

// together is how many containers are ended at a time: the last shall not be without network for as long as the others take to end.
const together = 10

// end stops the containers that were cut for long enough.
func (m *Manager) end(ctx context.Context, since map[string]time.Time, now time.Time, network string) error {
	var errs []error
	var over []string
	for id, begin := range since {
		if left := rejoin - now.Sub(begin); left > 0 {
			errs = append(errs, &pending{left, fmt.Errorf("container %.12s has lost its connection to network %q; it is ended if that lasts %s", id, network, rejoin)})
			continue
		}
		over = append(over, id)
	}
	results := make([]error, len(over))
	var group sync.WaitGroup
	places := make(chan struct{}, together)
	for i, id := range over {
		klog.InfoS("A container without connection is ended, to be made anew", "container", id, "network", network)
		places <- struct{}{}
		group.Go(func() {
			results[i] = m.parts.Engine.Stop(ctx, id)
			<-places
		})
	}
	group.Wait()
	ended := 0
	for i, err := range results {
		if err == nil {
			ended++
			delete(since, over[i])
		}
	}
	if ended > 0 {
		m.event(v1.EventTypeWarning, "EndpointsLost", fmt.Sprintf("%d containers had lost their connection to network %q and are made anew", ended, network))
	}
	return errors.Join(append(errs, results...)...)
}
