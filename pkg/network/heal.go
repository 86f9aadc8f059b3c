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

// recheckOld is how often a host is compared whose HNS has no subscribers: Windows before firstToTell, the build of Server 2019.
const (
	recheckOld  = 5 * time.Second
	firstToTell = 17763
)

// pending is what time may mend, or is up to us when that has passed: no failure to back off from.
type pending struct {
	in time.Duration // until then
	error
}

// heal ends containers that have lost their connection, once each: Windows' HNS loses endpoints when it crashes (projectcalico/calico#5164,
// docker/for-win#12425), which neither it nor the engine brings back for a container that runs. What ended with them is for the pods' workers
// to start again. The error says that some are cut and for how long nothing is done.
func (m *Manager) heal(ctx context.Context, n pod.EngineNetwork) error {
	if m.cfg.Platform.OS != "windows" { // elsewhere the engine alone connects
		return nil
	}
	members, err := m.parts.Engine.Members(ctx, n.Name) // first: whoever is in it was connected before
	if err != nil || len(members) == 0 {
		m.cut = nil
		return err
	}
	have, known, err := m.parts.Host.Connected(ctx, n)
	if err != nil || !known {
		return err
	}
	now := m.parts.Clock.Now()
	since := map[string]time.Time{}
	for id, addrs := range members {
		if len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(have, a) }) {
			since[id] = now
			if before, ok := m.cut[id]; ok {
				since[id] = before
			}
		}
	}
	m.cut = since
	if len(since) == 0 {
		return nil
	}
	return m.end(ctx, since, now, n.Name)
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

// next says how long to wait after a comparison that ended with err and came after so many failures in a row, and how many there are now.
// every is the wait when nothing is wrong.
func next(err error, failures int, every time.Duration) (wait time.Duration, now int) {
	var soon *pending
	switch {
	case err == nil:
		return every, 0
	case errors.As(err, &soon):
		return soon.in, 0
	}
	return min(firstRetry<<min(failures, 10), every), failures + 1
}

// every is how often a host is compared that tells of no change: oftener where HNS cannot tell of its end.
func (m *Manager) every() time.Duration {
	if p := m.cfg.Platform; p.OS == "windows" && p.Build < firstToTell {
		return recheckOld
	}
	return recheck
}
