package proxy

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// batchWindow is how long the loop waits for further changes after the first one: a rollout arrives as many small
	// ones.
	batchWindow = 3 * time.Millisecond
	// freeAfter is when, after the start, free memory is returned to the system. Reading everything takes a multiple of
	// what is kept, and informers and back end release it only after they have finished their part.
	freeAfter = 500 * time.Millisecond
	// defaultResync is the default interval between full comparisons.
	defaultResync = 30 * time.Second
)

// firstRetry is the back-off of failed Routes.
var firstRetry = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: 30 * time.Second}

// LoopConfig is the configuration of a Loop.
type LoopConfig struct {
	Node    NodeInfo // Zone is set from the Node object
	Inbox   *Inbox
	Backend Backend
	Health  *Health
	Metrics *Metrics
	// Resync is the interval between full comparisons when nothing changed; 0: 30 s.
	Resync time.Duration
	// Hints signals that the host changed and a full comparison is needed; may be nil.
	Hints <-chan struct{}
	// Holders are the holders of addresses other than Services, as known at start. The Loop determines ServiceRanges
	// and Nodes itself.
	Holders Holders
	// Host reads the state of this host before each full comparison; nil: only its Node is known.
	Host func() (Host, error)
	// APIServers is called with the addresses of the API server's Service and its endpoints before a Sync that changes
	// them; may be nil.
	APIServers func([]netip.Addr)
	Events     record.EventRecorder // on Services and Nodes
	Clock      clock.WithTicker
}

// Loop brings the host to the cluster's Services: it collects changes for a few milliseconds, updates the Table and
// calls the Backend. It retries failures with back-off, and compares everything periodically.
//
//	inbox (informers) --batch--> Tracker --changed--> Backend.Sync --errors--> retry
//
// One goroutine, Run's, owns the Tracker and calls the Backend.
type Loop struct {
	cfg   LoopConfig
	start time.Time

	mu      sync.RWMutex // Run's goroutine writes with Lock; all readers use RLock
	tracker *Tracker

	// Only for the goroutine of Run:
	failing  map[ServiceName]string // Services to retry, with their last failure
	whole    bool                   // the last Sync failed as a whole: retry everything
	delay    time.Duration          // until the next retry; 0: nothing failed
	backoff  wait.Backoff           // computes the next delay
	problems map[ServiceName][]Problem
	own      *v1.Node // nil: unknown
	ranges   map[string]*networking.ServiceCIDR
	refusals refusals
	hostErr  string // the last failure of Host that was logged
}

// NewLoop returns a Loop that has seen no objects.
func NewLoop(cfg LoopConfig) *Loop {
	if cfg.Resync <= 0 {
		cfg.Resync = defaultResync
	}
	return &Loop{cfg: cfg, backoff: firstRetry, start: cfg.Clock.Now(), tracker: NewTracker(cfg.Node, cfg.Holders), failing: map[ServiceName]string{},
		problems: map[ServiceName][]Problem{}, ranges: map[string]*networking.ServiceCIDR{},
		refusals: refusals{}}
}

// WriteTable prints the current Table, then what was omitted and what the back end could not serve.
func (l *Loop) WriteTable(w io.Writer) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if err := l.tracker.Table().Fprint(w); err != nil {
		return err
	}
	for _, p := range l.tracker.AllProblems() {
		fmt.Fprintf(w, "left out: %s\n", p)
	}
	names := make([]ServiceName, 0, len(l.failing))
	for name := range l.failing {
		names = append(names, name)
	}
	slices.SortFunc(names, compareService)
	for _, name := range names {
		fmt.Fprintf(w, "failing: %s: %s\n", name, l.failing[name])
	}
	return nil
}

// Run works until ctx ends. synced is closed once the inbox has received every object that existed at start. Run does
// not sync earlier, because a Table of half the cluster would disrupt the other half.
func (l *Loop) Run(ctx context.Context, synced <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-synced:
	}
	l.step(ctx, nil, true)
	defer time.AfterFunc(freeAfter, debug.FreeOSMemory).Stop()
	resync := l.cfg.Clock.NewTicker(l.cfg.Resync)
	defer resync.Stop()
	for {
		again, whole, ok := l.await(ctx, resync.C())
		if !ok {
			return nil
		}
		l.step(ctx, again, whole)
	}
}

// await waits for a change in the Inbox, Services to retry, or a full comparison. ok is false when ctx has ended.
func (l *Loop) await(ctx context.Context, resync <-chan time.Time) (again []ServiceName, whole, ok bool) {
	var retry <-chan time.Time
	if l.delay > 0 {
		timer := l.cfg.Clock.NewTimer(l.delay)
		defer timer.Stop()
		retry = timer.C()
	}
	select {
	case <-ctx.Done():
		return nil, false, false
	case <-l.cfg.Inbox.ready:
		l.gather(ctx)
		select {
		case <-l.cfg.Hints: // the host's state decides which claims of these objects are refused
			whole = true
		default:
		}
	case <-retry:
		return slices.Collect(maps.Keys(l.failing)), l.whole, true
	case <-l.cfg.Hints:
		whole = true
	case <-resync:
		whole = true
	}
	return nil, whole, true
}

// gather waits briefly for related changes.
func (l *Loop) gather(ctx context.Context) {
	timer := l.cfg.Clock.NewTimer(batchWindow)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// step takes the inbox's batch and syncs it together with again, or everything.
func (l *Loop) step(ctx context.Context, again []ServiceName, whole bool) {
	batch := l.cfg.Inbox.take()
	host, known := l.readHost(whole)
	l.mu.Lock()
	if known {
		l.tracker.SetHost(host)
	}
	whole = l.apply(batch) || whole
	changed, touched := l.tracker.Update()
	l.mu.Unlock()
	l.reportRefusals()
	for _, name := range touched {
		l.reportProblems(name)
	}
	for w, message := range batch.warnings {
		l.event(w.service, w.reason, message)
	}
	if !whole && len(changed) == 0 && len(again) == 0 {
		if !l.whole {
			l.cfg.Health.Updated()
		}
		l.count(batch)
		return
	}
	var names []ServiceName
	if !whole {
		names = append(changed, again...)
		slices.SortFunc(names, compareService)
		names = slices.Compact(names)
	}
	l.tellAPIServers(names)
	before := l.cfg.Clock.Now()
	err := l.cfg.Backend.Sync(ctx, l.tracker.Table(), names)
	if ctx.Err() != nil {
		return
	}
	now := l.cfg.Clock.Now()
	l.cfg.Metrics.synced(now.Sub(before), whole)
	klog.V(3).InfoS("Synced", "changed", len(changed), "retried", len(again), "whole", whole, "took", now.Sub(before))
	l.record(err, names, whole)
	if !l.whole {
		l.cfg.Health.Updated()
		l.cfg.Metrics.good(now)
		l.programmed(batch, now)
	}
	l.count(batch)
}

// readHost reads the state of this host before a full comparison; hints cause one when it changes.
func (l *Loop) readHost(whole bool) (Host, bool) {
	if !whole || l.cfg.Host == nil {
		return Host{}, false
	}
	host, err := l.cfg.Host()
	if err == nil {
		l.hostErr = ""
		return host, true
	}
	if text := err.Error(); text != l.hostErr {
		l.hostErr = text
		klog.ErrorS(err, "Cannot read the host's addresses and next hops; using those read last")
	}
	return Host{}, false
}

// apply passes a batch to the Tracker and reports whether a full comparison is needed because the ranges of Services or
// of this node's pods changed. Nodes come first: a Node that has an address when a Service starts to claim it keeps it.
func (l *Loop) apply(batch *batch) (whole bool) {
	pods := l.tracker.Table().PodRanges
	l.applyNodes(batch.nodes)
	whole = l.applyRanges(batch.ranges) || !slices.Equal(pods, l.tracker.Table().PodRanges)
	for name, service := range batch.services {
		if service == nil {
			l.tracker.DeleteService(name)
		} else {
			l.tracker.SetService(service)
		}
	}
	for key, slice := range batch.slices {
		if slice == nil {
			l.tracker.DeleteSlice(key)
		} else {
			l.tracker.SetSlice(slice)
		}
	}
	return whole
}

// applyNodes passes changed Nodes to the Tracker.
func (l *Loop) applyNodes(changed map[string]*v1.Node) {
	for name, node := range changed {
		if name == l.cfg.Node.Name {
			l.own = node
		}
		if node == nil {
			l.tracker.SetNodeHolding(name, nil)
			continue
		}
		holding := NodeHoldingOf(node)
		l.tracker.SetNodeHolding(name, &holding)
	}
	if _, ok := changed[l.cfg.Node.Name]; !ok {
		return
	}
	l.cfg.Health.SetNode(l.own)
	info := l.cfg.Node
	if l.own != nil {
		info.Zone = l.own.Labels[v1.LabelTopologyZone]
	}
	l.tracker.SetNode(info)
}

// applyRanges passes the ranges of service addresses to the Tracker, and reports whether they changed.
func (l *Loop) applyRanges(changed map[string]*networking.ServiceCIDR) bool {
	if len(changed) == 0 {
		return false
	}
	for name, cidr := range changed {
		if delete(l.ranges, name); cidr != nil {
			l.ranges[name] = cidr
		}
	}
	var all []netip.Prefix
	for _, cidr := range l.ranges {
		for _, text := range cidr.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p)
			} else {
				klog.ErrorS(nil, "Ignored a range of service addresses", "problem", fmt.Sprintf("ServiceCIDR %s spec.cidrs: %q must be a range such as 10.96.0.0/12", cidr.Name, text))
			}
		}
	}
	l.tracker.SetServiceRanges(all)
	return true
}

// nodeAddresses returns the IP addresses of a node; none for nil.
func nodeAddresses(node *v1.Node) (out []netip.Addr) {
	if node == nil {
		return nil
	}
	for _, a := range node.Status.Addresses {
		if addr, ok := parseIP(a.Address); ok {
			out = append(out, addr)
		}
	}
	return out
}

// record records what to retry after a Sync of names, or of everything, and reports new failures.
func (l *Loop) record(err error, names []ServiceName, whole bool) {
	routes, rest := RouteErrors(err)
	failures := map[ServiceName]string{}
	for _, r := range routes {
		name := r.Route.Service.ServiceName
		if failures[name] == "" {
			failures[name] = r.Error()
		}
	}
	l.mu.Lock()
	before := maps.Clone(l.failing)
	if whole {
		l.failing = map[ServiceName]string{}
	}
	for _, name := range names {
		delete(l.failing, name)
	}
	for _, r := range routes {
		name := r.Route.Service.ServiceName
		l.failing[name] = failures[name]
	}
	l.mu.Unlock()
	for name, text := range failures {
		if before[name] == text {
			continue // reported already
		}
		klog.ErrorS(nil, "Cannot serve a Service; retrying", "service", name, "reason", text)
		l.event(name, "FailedToServe", text)
	}
	if whole || len(rest) > 0 {
		l.whole = len(rest) > 0
	}
	for _, e := range rest {
		klog.ErrorS(e, "Cannot apply the table of Services to this host; retrying")
	}
	l.cfg.Metrics.routesFailing.Set(float64(len(l.failing)))
	l.cfg.Metrics.backEndFail.Set(map[bool]float64{true: 1}[l.whole])
	l.cfg.Metrics.routes.Set(float64(len(l.tracker.Table().Routes)))
	if whole {
		l.cfg.Metrics.setNoLocal(l.tracker.Table())
	}
	switch {
	case len(l.failing) == 0 && !l.whole:
		l.delay, l.backoff = 0, firstRetry
	default:
		l.delay = l.backoff.Step()
	}
}

// reportProblems reports once which parts of a Service are ignored.
func (l *Loop) reportProblems(name ServiceName) {
	now := append(slices.Clone(l.tracker.Problems(name)), l.ownAddresses(name)...)
	before := l.problems[name]
	if delete(l.problems, name); len(now) > 0 {
		l.problems[name] = now
	}
	for _, p := range now {
		switch {
		case slices.Contains(before, p):
		case p.Reason == Elsewhere:
			klog.V(2).InfoS("Not serving a front here", "problem", p.String())
		default:
			klog.ErrorS(nil, "Ignored a part of a Service", "problem", p.String())
			l.event(name, string(p.Reason), fmt.Sprintf("%s: %s", p.Field, p.Message))
		}
	}
}

// ownAddresses returns a Problem for each cluster IP of a Service that is this node's address: it is served, but hides
// the node's own ports. External IPs may be a node's address.
func (l *Loop) ownAddresses(name ServiceName) (out []Problem) {
	own := nodeAddresses(l.own)
	for _, r := range l.tracker.Table().Of(name) {
		if r.Kind == ClusterIP && slices.Contains(own, r.Front.Addr()) {
			out = append(out, Problem{name, "Service spec.clusterIPs", fmt.Sprintf("%s is an address of this node: the range of Services must not overlap with those of nodes",
				r.Front.Addr()), Invalid})
		}
	}
	return slices.Compact(out)
}

// event records a warning on a Service that still exists.
func (l *Loop) event(name ServiceName, reason, text string) {
	if service := l.tracker.Service(name); service != nil {
		l.cfg.Events.Event(&v1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name, UID: service.UID,
			ResourceVersion: service.ResourceVersion}, v1.EventTypeWarning, reason, text)
	}
}

func (l *Loop) count(b *batch) {
	l.cfg.Metrics.servicesPending.Sub(float64(b.serviceEvents))
	l.cfg.Metrics.endpointsPending.Sub(float64(b.sliceEvents))
}

// programmed records how long the changes of a batch took, from the pod or Service that caused them to the host.
func (l *Loop) programmed(b *batch, now time.Time) {
	for _, slice := range b.slices {
		if slice == nil {
			continue
		}
		text := slice.Annotations[v1.EndpointsLastChangeTriggerTime]
		trigger, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || trigger.Before(l.start) {
			continue // not set, or from before we watched
		}
		l.cfg.Metrics.programmed(v1.IPFamily(slice.AddressType), now.Sub(trigger))
	}
}
