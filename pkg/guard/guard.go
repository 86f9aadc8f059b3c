// Package guard protects this node: it ends pods that exceed their limits, and others when the node runs out of a
// resource (kubelet).
//
//	pods with limits --package disk, beside--> Usage --Plan (pure)--> Evictions ---------------------------+--> worker.Manager.Evict
//	the node's figures --> Observations --state.look (pure)--> conditions --> node, admission of new pods  |
//	                                                       --> due Threshold --> dead containers, images --+ rank, choose (pure)
//	images, containers that use them --ImagePolicy (pure)--> images to remove
//
// Frequent measurements are cheap: pods without limits are measured only when a disk is short and one of them must be
// evicted. Limited pods are measured in parallel with the node, and neither waits for a disk that hangs. As upstream,
// the Guard evicts at most one pod at a time because of the node, and chooses the next one after the cleanup.
package guard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
)

// Config says which resources to keep free, and how.
type Config struct {
	Thresholds []Threshold   // as Thresholds returns them
	Transition time.Duration // how long a condition stays after it was last found (evictionPressureTransitionPeriod)
	MaxGrace   time.Duration // longest grace period of a pod when a soft threshold is met (evictionMaxPodGracePeriod)
	Images     ImagePolicy
}

// Guard measures and evicts.
type Guard struct {
	cfg   Config
	parts Parts

	// The fields below belong to Run.
	state     state
	images    images
	limitsDue time.Time
	imagesDue time.Time
	measuring bool       // limited pods, in parallel with Run
	rounds    chan round // results of those measurements
	measurers sync.WaitGroup
	told      map[types.UID]time.Time
}

// round is one measurement of all limited pods.
type round struct {
	begun  time.Time
	usages []Usage
}

// New returns a Guard that does nothing before Run.
func New(cfg Config, parts Parts) *Guard {
	g := &Guard{cfg: cfg, parts: parts, images: images{}, rounds: make(chan round, 1), told: map[types.UID]time.Time{}}
	var ignored []Signal
	if g.cfg.Thresholds, ignored = forEngine(cfg.Thresholds); len(ignored) > 0 {
		klog.InfoS("Ignoring thresholds of containerfs: the engine keeps containers with the images, so thresholds of imagefs apply, or of nodefs if imagefs is not separate",
			"ignored", ignored)
	}
	return g
}

const (
	// period is how often limits and thresholds are checked (upstream's monitoring interval).
	period = 10 * time.Second
	// patience is how long measuring pods may take; slower volumes count with the figures known so far.
	patience = 10 * time.Second
	// silence is the minimum interval between Events about a pod that cannot be measured in time.
	silence = 10 * time.Minute
	// settle is the pause after an alarm, or after a pod ended, before the next check.
	settle = time.Second
	// cleanupPatience is how long the Guard waits for an evicted pod before it may choose another.
	cleanupPatience = 30 * time.Second
)

// Run checks periodically until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	defer g.measurers.Wait()
	now := g.parts.Clock.Now()
	g.limitsDue, g.imagesDue = now.Add(period), now.Add(imagePeriod)
	var alarm <-chan struct{}
	if g.parts.Alarm != nil {
		alarm = g.parts.Alarm.C()
	}
	for {
		wait := period
		if g.turn(ctx) {
			wait = settle
		}
		if !g.pause(ctx, wait, alarm) {
			return nil
		}
	}
}

// pause waits for the next turn, and meanwhile enforces limits when a round of measurements ends. false: ctx ended.
func (g *Guard) pause(ctx context.Context, wait time.Duration, alarm <-chan struct{}) bool {
	after := g.parts.Clock.After(wait)
	for {
		select {
		case <-ctx.Done():
			return false
		case r := <-g.rounds:
			if g.hold(r) {
				after = g.parts.Clock.After(settle)
			}
		case <-after:
			return true
		case <-alarm:
			klog.V(2).InfoS("Memory usage has reached a threshold")
			select { // so that fluctuating memory does not keep us busy
			case <-ctx.Done():
				return false
			case <-g.parts.Clock.After(settle / 10):
				return true
			}
		}
	}
}

// turn does what is due. It reports whether it evicted a pod because of the node.
func (g *Guard) turn(ctx context.Context) (evicted bool) {
	if now := g.parts.Clock.Now(); !g.measuring && !now.Before(g.limitsDue) {
		g.measuring, g.limitsDue = true, now.Add(period)
		g.measurers.Go(func() { g.rounds <- g.measure(ctx) }) // rounds has room for one
	}
	evicted = g.relieve(ctx)
	if now := g.parts.Clock.Now(); !now.Before(g.imagesDue) {
		g.collectImages(ctx)
		g.imagesDue = now.Add(imagePeriod)
	}
	return evicted
}

// measure measures all pods that have limits. It may take as long as patience; Run continues meanwhile.
func (g *Guard) measure(ctx context.Context) round {
	r := round{begun: g.parts.Clock.Now()}
	var whole, volumes []pod.View
	for _, view := range g.parts.Pods.Snapshot() {
		limits := LimitsOf(view.Pod)
		switch {
		case view.Phase != pod.Syncing || !limits.any():
			continue
		case limits.Pod != nil || len(limits.Containers) > 0:
			whole = append(whole, view)
		default:
			volumes = append(volumes, view)
		}
		r.usages = append(r.usages, Usage{Pod: view.Pod, Limits: limits})
	}
	if len(r.usages) > 0 {
		taken := g.parts.Disks.Pods(ctx, disk.Terms{Patience: patience}, whole, volumes)
		for i := range r.usages {
			r.usages[i].Taken = taken[r.usages[i].Pod.UID]
		}
	}
	return r
}

// hold evicts the pods that Plan names. Parts that were not measured in time count with the figures known so far.
func (g *Guard) hold(r round) (evicted bool) {
	g.measuring = false
	g.tellLate(r)
	return g.holdTo(Plan(r.usages), r.begun)
}

func (g *Guard) holdTo(plan []Eviction, measured time.Time) (evicted bool) {
	for _, e := range plan {
		g.evict(e.Pod, pod.Eviction{Rejection: pod.Rejection{Reason: reason, Message: e.Message}, Grace: grace}, e.Signal, measured)
		evicted = true
	}
	return evicted
}

const reasonSlow = "VolumeMeasureSlow"

// tellLate sends Events about pods that were not measured in time.
func (g *Guard) tellLate(r round) {
	now := g.parts.Clock.Now()
	maps.DeleteFunc(g.told, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= silence })
	for _, u := range r.usages {
		if _, told := g.told[u.Pod.UID]; told || len(u.Taken.Late) == 0 {
			continue
		}
		g.told[u.Pod.UID] = now
		g.parts.Events.PodEvent(u.Pod.Namespace, u.Pod.Name, string(u.Pod.UID), v1.EventTypeWarning, reasonSlow, slow(u.Taken.Late))
	}
}

// slow describes what was not measured in time, and which figures count meanwhile.
func slow(late []disk.Late) string {
	var files, systems, says []string
	limited := false
	for _, l := range late {
		since := "no earlier figure"
		if !l.At.IsZero() {
			since = "last complete figure of " + l.At.UTC().Format(time.RFC3339)
		}
		if l.System {
			systems = append(systems, fmt.Sprintf("%s (%s)", l.What, since))
			continue
		}
		limited = limited || !l.Claim
		files = append(files, fmt.Sprintf("%s counts as %d bytes in %d files (%s)", l.What, l.Of.Bytes, l.Of.Files, since))
	}
	if len(files) > 0 {
		advice := "No limit covers it; use fewer files"
		if limited {
			advice = "Limits are checked against the larger of the last complete figure and the count so far; use fewer files, or a volume on a separate file system that responds"
		}
		says = append(says, fmt.Sprintf("Not measured within %s: %s. %s", patience, strings.Join(files, "; "), advice))
	}
	if len(systems) > 0 {
		says = append(says, fmt.Sprintf("The file system did not answer within %s: %s. The last figure stays; check the server or the disk behind the file system", patience, strings.Join(systems, "; ")))
	}
	return strings.Join(says, ". ")
}

func (g *Guard) evict(p *v1.Pod, e pod.Eviction, signal string, measured time.Time) {
	g.parts.Counts.Evicted(signal, g.parts.Clock.Since(measured))
	klog.InfoS("Evicting pod", "pod", klog.KObj(p), "why", e.Message, "grace", e.Grace)
	g.parts.Pods.Evict(p.UID, e)
}

const reasonThresholdMet = "EvictionThresholdMet"

// relieve compares the node's free resources with the thresholds and reclaims what is due: first what no pod needs,
// then a pod. It waits until that pod has ended, and reports whether one was evicted.
func (g *Guard) relieve(ctx context.Context) bool {
	if len(g.cfg.Thresholds) == 0 {
		return false
	}
	measured := g.parts.Clock.Now()
	o := Observe(g.parts.Figures.Node(ctx))
	var conditions []v1.NodeConditionType
	g.state, conditions = g.state.look(g.cfg.Thresholds, o, g.cfg.Transition, g.parts.Clock.Now())
	g.tell(conditions)
	g.arm(o)
	if len(g.state.due) == 0 {
		return false
	}
	t := g.state.due[0]
	var dedicated bool
	if t.Signal.onDisk() { // irrelevant for memory, which must not wait for an engine that hangs
		var err error
		if dedicated, err = g.parts.Disks.ImagesApart(ctx); err != nil {
			klog.ErrorS(err, "Cannot find Docker's image file system; not evicting pods because of disk usage until Docker responds")
			return false
		}
	}
	klog.InfoS("The node is running out of a resource; reclaiming it", "resource", t.Signal.resource(), "signal", t.Signal, "available", o[t.Signal].Available,
		"threshold", t.Value.text(o[t.Signal].Capacity, t.Signal))
	g.parts.Events.NodeEvent(v1.EventTypeWarning, reasonThresholdMet, "Attempting to reclaim "+string(t.Signal.resource()))
	if t.Signal.reclaims(dedicated) {
		g.reclaim(ctx)
		if satisfied(g.cfg.Thresholds, Observe(g.parts.Figures.Node(ctx))) {
			klog.InfoS("Reclaimed enough without evicting a pod", "signal", t.Signal)
			return false
		}
	}
	all, over := g.candidates(ctx, t.Signal)
	if g.holdTo(over, measured) { // they end before pods that are within their limits
		for _, e := range over {
			g.await(ctx, e.Pod)
		}
		return true
	}
	c, ok := choose(all, t, dedicated)
	if !ok {
		klog.InfoS("No pod can be evicted", "signal", t.Signal)
		return false
	}
	message, annotations := c.explain(t, o)
	g.evict(c.pod, pod.Eviction{Rejection: pod.Rejection{Reason: reason, Message: message}, Grace: graceFor(c.pod, t, g.cfg.MaxGrace), Annotations: annotations},
		string(t.Signal), measured)
	g.await(ctx, c.pod)
	return true
}

// await waits until an evicted pod is cleaned up, at most cleanupPatience.
func (g *Guard) await(ctx context.Context, p *v1.Pod) {
	select {
	case <-ctx.Done():
	case <-g.parts.Pods.Vacated(p.UID):
	case <-g.parts.Clock.After(cleanupPatience):
		klog.InfoS("An evicted pod has not ended yet; not waiting for it any longer", "pod", klog.KObj(p))
	}
}

// candidates returns the pods that have not ended with their use of the signal's resource, and those of them that
// exceed a limit in their spec.
func (g *Guard) candidates(ctx context.Context, signal Signal) (all []candidate, over []Eviction) {
	var views []pod.View
	for _, view := range g.parts.Pods.Snapshot() {
		if view.Phase == pod.Syncing {
			views = append(views, view)
			all = append(all, candidate{pod: view.Pod})
		}
	}
	if signal.onDisk() {
		var usages []Usage
		taken := g.parts.Disks.Pods(ctx, disk.Terms{Patience: patience, Age: period / 2, Urgent: true}, views, nil)
		for i := range all {
			if of, ok := taken[all[i].pod.UID]; ok {
				all[i].disk = &of
				usages = append(usages, Usage{Pod: all[i].pod, Limits: LimitsOf(all[i].pod), Taken: of})
			}
		}
		return all, Plan(usages)
	}
	stats := map[types.UID]*summary.PodStats{}
	usage := g.parts.Figures.Summary(ctx, true)
	for i := range usage.Pods {
		stats[types.UID(usage.Pods[i].PodRef.UID)] = &usage.Pods[i]
	}
	for i := range all {
		all[i].stats = stats[all[i].pod.UID]
	}
	return all, nil
}

// reclaim removes what no pod needs: containers of pods that have ended, and unused images.
func (g *Guard) reclaim(ctx context.Context) {
	g.parts.Pods.RemoveLeftovers()
	unused, err := g.unusedImages(ctx)
	if err == nil {
		_, err = g.removeImages(ctx, unused, ^uint64(0), "space")
	}
	if err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Cannot remove images to make room")
	}
}

// tell publishes the conditions.
func (g *Guard) tell(conditions []v1.NodeConditionType) {
	if before := g.parts.Pressure.Conditions(); !slices.Equal(before, conditions) {
		klog.InfoS("The node's pressure has changed", "before", before, "now", conditions)
		g.parts.Pressure.conditions.Store(&conditions)
		g.parts.Node.Send()
	}
}

// arm sets the kernel's alarm to the next memory threshold.
func (g *Guard) arm(o Observations) {
	if g.parts.Alarm == nil {
		return
	}
	left := map[Signal]int64{}
	for _, t := range g.cfg.Thresholds {
		seen, ok := o[t.Signal]
		if room := seen.Available - t.Value.of(seen.Capacity); ok && room > 0 && (left[t.Signal] == 0 || room < left[t.Signal]) {
			left[t.Signal] = room
		}
	}
	if err := g.parts.Alarm.Arm(left[MemoryAvailable], left[AllocatableMemory]); err != nil {
		klog.V(4).InfoS("Cannot subscribe to the kernel's memory notifications; checking memory every ten seconds", "err", err)
	}
}
