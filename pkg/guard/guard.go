// Package guard keeps this node alive: it ends pods that take more than they may, and others when the node runs out of something (kubelet).
//
//	pods with limits --volumes, engine--> Usage --Plan (pure)--> Evictions --------------------------------+--> pod.Manager.Evict
//	the node's figures --> Observations --state.look (pure)--> conditions --> node, admission of new pods  |
//	                                                       --> due Threshold --> dead containers, images --+ rank, choose (pure)
//	images, who uses them --ImagePolicy (pure)--> images to remove
//
// What is measured often is cheap: pods that have no limit are measured only when one of them has to go. As upstream, at most one pod goes
// at a time for the sake of the node, and the next one is chosen when its traces are gone.
package guard

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
)

// Config is what the user wants kept free, and how.
type Config struct {
	Thresholds []Threshold   // of the function of that name
	Transition time.Duration // so long a condition stays after it was last found (evictionPressureTransitionPeriod)
	MaxGrace   time.Duration // most that a pod gets to stop for the sake of a soft threshold (evictionMaxPodGracePeriod)
	Images     ImagePolicy
}

// Parts are what a Guard works with.
type Parts struct {
	Pods func() []pod.View
	// Volumes measures a pod's volumes, as far as they are there.
	Volumes func(*v1.Pod) ([]volume.Usage, error)
	// Files measures what a pod's own files take, which its containers can write to: hosts, resolv.conf, termination messages.
	Files func(types.UID) uint64
	// Container measures what a container has written.
	Container func(ctx context.Context, id string) (docker.DiskUsage, error)
	// Evict ends a pod. One that ends already, or is gone, is no error.
	Evict func(types.UID, pod.Eviction)
	// Evicted is told of each pod that has to go: for the sake of which signal, and how old the figures are by which it was found. nil: nobody asks.
	Evicted func(signal string, age time.Duration)
	// Ended returns what is closed when nothing of a pod runs and its volumes are gone.
	Ended func(types.UID) <-chan struct{}

	// Node measures the node alone, now; Summary the pods as well, which costs more.
	Node    func(context.Context) *summary.NodeStats
	Summary func(context.Context) *summary.Summary
	// Dedicated says whether the engine keeps images on another file system than the one that is the node's.
	Dedicated func(context.Context) (bool, error)
	// Sweep removes the containers of pods that have ended, whose logs could still be asked for.
	Sweep  func()
	Images ImageParts
	// Alarm tells of memory that runs out sooner than the next look would; nil: nothing does.
	Alarm Alarm
	// Changed is called when Conditions says something else than before.
	Changed func()
	// NodeEvent tells of the node.
	NodeEvent func(kind, reason, message string)
	Clock     clock.WithDelayedExecution
}

// Alarm tells when memory in use has grown.
type Alarm interface {
	// Arm has a token put into C when all processes, or all pods together, use so many bytes more than now; 0 or less: not asked for. Each
	// call takes the place of the one before.
	Arm(node, pods int64) error
	C() <-chan struct{}
}

// Guard measures and evicts.
type Guard struct {
	cfg        Config
	parts      Parts
	conditions atomic.Pointer[[]v1.NodeConditionType]

	// What follows belongs to Run.
	state     state
	images    images
	limitsDue time.Time
	imagesDue time.Time
}

// New makes a Guard, which does nothing before Run.
func New(cfg Config, parts Parts) *Guard {
	g := &Guard{cfg: cfg, parts: parts, images: images{}}
	if parts.Evicted == nil {
		g.parts.Evicted = func(string, time.Duration) {}
	}
	var ignored []Signal
	if g.cfg.Thresholds, ignored = forEngine(cfg.Thresholds); len(ignored) > 0 {
		klog.InfoS("Thresholds of containerfs are those of imagefs, or where it is no file system of its own of nodefs: the engine keeps containers with the images",
			"ignored", ignored)
	}
	return g
}

const (
	// period is how often limits and thresholds are looked at (upstream's monitoring interval).
	period = 10 * time.Second
	// rest is how much longer than a look at limits took the pause after it is at least: looking takes a twentieth of one core at most.
	rest = 20
	// patience is how long one pod may take to be measured.
	patience = 30 * time.Second
	// settle is the pause after an alarm, or when a pod has gone, before the next look.
	settle = time.Second
	// cleanupPatience is how long an evicted pod is waited for before another may be chosen.
	cleanupPatience = 30 * time.Second
)

// Run looks again and again until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
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
		after := g.parts.Clock.After(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-after:
		case <-alarm:
			klog.V(2).InfoS("Memory in use has come to a threshold")
			select { // so that memory that goes up and down does not keep us busy
			case <-ctx.Done():
				return nil
			case <-g.parts.Clock.After(settle / 10):
			}
		}
	}
}

// turn does what is due. It says whether a pod had to go for the sake of the node.
func (g *Guard) turn(ctx context.Context) (evicted bool) {
	begin := g.parts.Clock.Now()
	if !begin.Before(g.limitsDue) {
		evicted = g.holdToLimits(ctx)
		g.limitsDue = g.parts.Clock.Now().Add(max(period, rest*g.parts.Clock.Since(begin)))
	}
	if !evicted {
		evicted = g.relieve(ctx)
	}
	if now := g.parts.Clock.Now(); !now.Before(g.imagesDue) {
		g.collectImages(ctx)
		g.imagesDue = now.Add(imagePeriod)
	}
	return evicted
}

// holdToLimits measures the pods that have limits and evicts those that Plan names.
func (g *Guard) holdToLimits(ctx context.Context) (evicted bool) {
	var usages []Usage
	begin := g.parts.Clock.Now()
	for _, view := range g.parts.Pods() {
		if view.Phase != pod.Syncing || ctx.Err() != nil {
			continue
		}
		if limits := LimitsOf(view.Pod); limits.any() {
			usages = append(usages, g.measure(ctx, view, limits))
		}
	}
	for _, e := range Plan(usages) {
		g.evict(e.Pod, pod.Eviction{Rejection: pod.Rejection{Reason: reason, Message: e.Message}, Grace: grace}, e.Signal, begin)
		evicted = true
	}
	return evicted
}

func (g *Guard) evict(p *v1.Pod, e pod.Eviction, signal string, measured time.Time) {
	g.parts.Evicted(signal, g.parts.Clock.Since(measured))
	klog.InfoS("Evicting pod", "pod", klog.KObj(p), "why", e.Message, "grace", e.Grace)
	g.parts.Evict(p.UID, e)
}

// measure finds what one pod takes. What cannot be measured counts as nothing: nobody is evicted for what is not known.
func (g *Guard) measure(ctx context.Context, view pod.View, limits Limits) Usage {
	u := Usage{Pod: view.Pod, Limits: limits, Containers: map[string]uint64{}}
	note := func(err error) {
		if err != nil && ctx.Err() == nil {
			klog.V(2).InfoS("Cannot measure what a pod takes of the disk", "pod", klog.KObj(view.Pod), "err", err)
		}
	}
	var err error
	u.Volumes, err = g.parts.Volumes(view.Pod)
	note(err)
	if limits.Pod == nil && len(limits.Containers) == 0 {
		return u
	}
	u.Files = g.parts.Files(view.Pod.UID)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, c := range view.Observed.Containers {
		if _, newer := u.Containers[c.Name]; newer {
			continue
		}
		disk, err := g.parts.Container(ctx, c.ID)
		note(err)
		u.Containers[c.Name] = disk.Logs + disk.Writable
	}
	return u
}

const reasonThresholdMet = "EvictionThresholdMet"

// relieve compares what is left on the node with the thresholds, and has something given back where that is due: first what no pod misses,
// then a pod. It says whether a pod had to go, and waits until it has gone.
func (g *Guard) relieve(ctx context.Context) bool {
	if len(g.cfg.Thresholds) == 0 {
		return false
	}
	measured := g.parts.Clock.Now()
	o := Observe(g.parts.Node(ctx))
	var conditions []v1.NodeConditionType
	g.state, conditions = g.state.look(g.cfg.Thresholds, o, g.cfg.Transition, g.parts.Clock.Now())
	g.tell(conditions)
	g.arm(o)
	if len(g.state.due) == 0 {
		return false
	}
	t := g.state.due[0]
	dedicated, err := g.parts.Dedicated(ctx)
	if err != nil {
		klog.ErrorS(err, "Cannot find out on which file system the engine keeps images; nothing is given back before that is known")
		return false
	}
	klog.InfoS("The node runs out of a resource", "resource", t.Signal.resource(), "signal", t.Signal, "available", o[t.Signal].Available,
		"threshold", t.Value.text(o[t.Signal].Capacity, t.Signal))
	g.parts.NodeEvent(v1.EventTypeWarning, reasonThresholdMet, "Attempting to reclaim "+string(t.Signal.resource()))
	if t.Signal.reclaims(dedicated) {
		g.reclaim(ctx)
		if satisfied(g.cfg.Thresholds, Observe(g.parts.Node(ctx))) {
			klog.InfoS("Enough was given back without a pod having to go", "signal", t.Signal)
			return false
		}
	}
	c, ok := choose(g.candidates(ctx), t, dedicated)
	if !ok {
		klog.InfoS("There is no pod that could be evicted", "signal", t.Signal)
		return false
	}
	message, annotations := c.explain(t, o)
	g.evict(c.pod, pod.Eviction{Rejection: pod.Rejection{Reason: reason, Message: message}, Grace: graceFor(c.pod, t, g.cfg.MaxGrace), Annotations: annotations},
		string(t.Signal), measured)
	select {
	case <-ctx.Done():
	case <-g.parts.Ended(c.pod.UID):
	case <-g.parts.Clock.After(cleanupPatience):
		klog.InfoS("An evicted pod takes long to end", "pod", klog.KObj(c.pod))
	}
	return true
}

// candidates are the pods that have not ended, and what they use.
func (g *Guard) candidates(ctx context.Context) []candidate {
	stats := map[types.UID]*summary.PodStats{}
	all := g.parts.Summary(ctx)
	for i := range all.Pods {
		stats[types.UID(all.Pods[i].PodRef.UID)] = &all.Pods[i]
	}
	var out []candidate
	for _, view := range g.parts.Pods() {
		if view.Phase == pod.Syncing {
			out = append(out, candidate{view.Pod, stats[view.Pod.UID]})
		}
	}
	return out
}

// reclaim removes what no pod misses: containers of pods that have ended, and images that nobody uses.
func (g *Guard) reclaim(ctx context.Context) {
	g.parts.Sweep()
	unused, err := g.unusedImages(ctx)
	if err == nil {
		_, err = g.removeImages(ctx, unused, ^uint64(0), "space")
	}
	if err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Cannot remove images to make room")
	}
}

// tell makes the conditions known.
func (g *Guard) tell(conditions []v1.NodeConditionType) {
	if before := g.Conditions(); !slices.Equal(before, conditions) {
		klog.InfoS("The node's pressure has changed", "before", before, "now", conditions)
		g.conditions.Store(&conditions)
		g.parts.Changed()
	}
}

// Conditions are what the node is short of, sorted: of MemoryPressure, DiskPressure and PIDPressure. Any goroutine may ask.
func (g *Guard) Conditions() []v1.NodeConditionType {
	if c := g.conditions.Load(); c != nil {
		return *c
	}
	return nil
}

// arm has the kernel tell when memory comes to the next threshold.
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
		klog.V(4).InfoS("The kernel does not tell when memory runs out; it is looked at every ten seconds", "err", err)
	}
}
