package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// Config is the node's settings for its pods.
type Config struct {
	Platform pod.Platform
	// HostIPs are this node's addresses, primary first. Called often; must not block.
	HostIPs func() []netip.Addr
	// Dead limits the exited containers that are kept; nil: upstream's defaults.
	Dead *plan.DeadLimits
	// CrashBackOff is the longest delay before a crashing container starts again; 0: upstream's 300 s.
	CrashBackOff time.Duration
	// Resync is the interval of complete comparisons without an event; 0: 60 s.
	Resync time.Duration
	// Starts is how many sandboxes may start at a time; 0: four for each processor.
	Starts int
}

// Resolver collects what a start needs. *start.Resolver implements it.
type Resolver interface {
	Handler(ctx context.Context, pod *v1.Pod) (string, error)
	Sandbox(ctx context.Context, pod *v1.Pod) (*pod.SandboxInputs, error)
	Container(ctx context.Context, pod *v1.Pod, container *v1.Container, at pod.Attempt) (*pod.Inputs, error)
}

// Parts are the dependencies of a Manager. All are required except Status, Cgroups, Attacher, HostPorts and Timing.
type Parts struct {
	Source    pod.Feed
	Runtime   pod.Runtime
	Resolver  Resolver // a *start.Resolver
	Volumes   pod.Volumes
	Cgroups   pod.Cgroups   // nil: only containers have cgroups, pods do not
	Attacher  pod.Attacher  // nil: the engine provides the pods' complete network
	HostPorts pod.HostPorts // nil: the engine publishes all ports, or no ports are served
	Objects   pod.Objects
	Status    pod.StatusWriter // nil: there is no API server
	Admitter  pod.Admitter
	Prober    pod.Prober
	Executor  pod.Executor
	Events    record.EventRecorder
	Timing    pod.Timing // nil: nothing is measured
	Clock     clock.WithTicker

	slots slots // set by New
}

// Manager runs the node's pods, one worker per pod. Any goroutine may call Evict, Lookup, Snapshot and the other methods that read pods.
type Manager struct {
	*roster
	cfg   Config
	parts Parts
	inbox *inbox
	crew  crew
	beat  atomic.Pointer[time.Time] // last iteration of the loop; nil: not running

	// Only the loop uses the fields below.
	ctx         context.Context
	start       time.Time
	allocations *allocations
	waiting     map[types.UID]pod.Desired // pods that wait: for a predecessor with the same name or UID, for victims to end, or for the Admitter's question
	asking      map[types.UID]bool        // pods with a question of the Admitter in progress
	strays      map[types.UID]*v1.Pod
	synced      bool
	relisting   bool
}

// New returns a Manager.
func New(cfg Config, parts Parts) *Manager {
	if cfg.Resync == 0 {
		cfg.Resync = 60 * time.Second
	}
	parts.slots = make(slots, cmp.Or(cfg.Starts, 4*runtime.NumCPU()))
	return &Manager{
		roster: newRoster(), cfg: cfg, parts: parts, inbox: newInbox(), allocations: newAllocations(parts.Admitter, parts.Clock),
		waiting: map[types.UID]pod.Desired{}, asking: map[types.UID]bool{}, strays: map[types.UID]*v1.Pod{},
	}
}

// Run runs pods until ctx ends, which is not an error. Running pods then keep running. Run starts nothing until the engine has listed its
// containers.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.crew.Wait()
	defer cancel()
	m.ctx, m.start = ctx, m.parts.Clock.Now()
	changes := m.parts.Runtime.Changes(ctx)
	updates := make(chan pod.Update)
	sourceEnded := make(chan error, 1)
	m.crew.do(ctx, func(ctx context.Context) error { return m.parts.Source.Run(ctx, updates) }, func(err error) { sourceEnded <- err })
	first, err := m.observeFirst(changes)
	if err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	resync := m.parts.Clock.NewTicker(m.cfg.Resync)
	defer resync.Stop()
	beat := m.parts.Clock.NewTicker(beatPeriod)
	defer beat.Stop()
	objects := m.parts.Objects.Changed()
	for {
		now := m.parts.Clock.Now()
		m.beat.Store(&now)
		select {
		case <-ctx.Done():
			return nil
		case err := <-sourceEnded:
			if ctx.Err() == nil {
				return fmt.Errorf("cannot follow the pods of this node: %w", cmp.Or(err, errors.New("their source ended")))
			}
		case u := <-updates:
			m.update(u, first)
		case uid, ok := <-changes:
			if !ok {
				changes = nil
				break
			}
			m.changed(uid)
		case uid := <-objects:
			if w := m.worker(uid); w != nil {
				w.inbox.put(w.objectsChanged)
			}
		case <-m.inbox.filled:
			m.inbox.drain()
		case <-beat.C():
		case <-resync.C():
			m.resync()
		}
	}
}

const beatPeriod = 10 * time.Second

// observeFirst asks the engine until it answers. After a failure it retries with back-off, or immediately when the engine sends an event.
func (m *Manager) observeFirst(changes <-chan types.UID) (map[types.UID]pod.Observed, error) {
	delay := wait.Backoff{Duration: time.Second, Factor: 2, Cap: 10 * time.Second, Steps: 32}
	for {
		all, err := m.parts.Runtime.ObserveAll(m.ctx)
		if err == nil {
			m.parts.exposeAll(all)
			return all, nil
		}
		if m.ctx.Err() != nil {
			return nil, m.ctx.Err()
		}
		klog.ErrorS(err, "Cannot list containers; not starting pods until Docker responds")
		timer := m.parts.Clock.NewTimer(delay.Step())
		select {
		case <-m.ctx.Done():
			timer.Stop()
			return nil, m.ctx.Err()
		case _, ok := <-changes:
			if !ok {
				changes = nil
			}
		case <-timer.C():
		}
		timer.Stop()
	}
}

// update applies a change from the sources. first is what the engine had when this agent started.
func (m *Manager) update(u pod.Update, first map[types.UID]pod.Observed) {
	for _, gone := range u.Gone {
		m.dropWaiting(gone.UID)
		if w := m.worker(gone.UID); w != nil {
			w.leaving = true
			w.inbox.put(func() { w.remove(gone) })
			m.release(gone.UID) // the scheduler has already reassigned its resources, even if containers still have to stop
		}
	}
	set := slices.Clone(u.Set)
	ran := func(d pod.Desired) bool {
		return slices.ContainsFunc(first[d.Pod.UID].Containers, func(c pod.Container) bool { return c.State == pod.Running })
	}
	// Pods that already run keep their place; then older pods come first.
	slices.SortStableFunc(set, func(a, b pod.Desired) int {
		if x, y := ran(a), ran(b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return a.Pod.CreationTimestamp.Compare(b.Pod.CreationTimestamp.Time)
	})
	for _, d := range set {
		_, known := first[d.Pod.UID]
		m.want(d, known)
	}
	for _, mirror := range u.Strays {
		m.strays[mirror.UID] = mirror
	}
	m.dropStrays()
	if u.Synced && !m.synced {
		m.synced = true
		m.orphans(first)
		m.leftovers()
		clear(first) // from now on, this agent has admitted every running pod
	}
}

// want makes a pod run, in a new worker if it has none. known means that the engine has something of it from before this agent started.
func (m *Manager) want(d pod.Desired, known bool) {
	uid := d.Pod.UID
	if w := m.worker(uid); w != nil {
		if w.leaving {
			m.waiting[uid] = d // it was removed and is wanted again: start it in a new worker
			return
		}
		d = m.allocate(d)
		w.inbox.put(func() { w.desire(d) })
		return
	}
	if m.predecessor(d.Pod) {
		m.waiting[uid] = d
		return
	}
	delete(m.waiting, uid)
	d, pending := m.allocations.recall(d)
	if pending {
		m.inbox.put(m.retryResizes)
	}
	w := m.newWorker(d, known) // a pod without a worker has nothing in the engine unless it predates this agent: no need to ask
	if w.phase() == pod.Syncing {
		if known || d.Pod.Status.Phase == v1.PodRunning { // it was admitted before
			m.parts.Admitter.Adopt(d.Pod)
		} else if no, wait := m.admit(d); wait {
			return
		} else if no != nil {
			klog.V(1).InfoS("Pod is not admitted", "pod", klog.KObj(d.Pod), "reason", no.Reason, "message", no.Message)
			w.end(*no, nil)
		}
	}
	w.register()
	m.begin(w)
}

// dropWaiting forgets a waiting pod.
func (m *Manager) dropWaiting(uid types.UID) {
	if m.waiting[uid].Pod != nil && m.worker(uid) == nil {
		m.parts.Admitter.Release(uid)
		m.allocations.forget(uid)
	}
	delete(m.waiting, uid)
}

// preempt ends pods to make room for a critical one.
func (m *Manager) preempt(critical *v1.Pod, victims []types.UID) {
	for _, uid := range victims {
		klog.InfoS("Preempting a pod", "uid", uid, "for", klog.KObj(critical))
		if w := m.worker(uid); w != nil {
			w.inbox.put(w.preempt)
		} else if d, waits := m.waiting[uid]; waits { // critical too, with a lower priority
			delete(m.waiting, uid)
			w := m.newWorker(d, false)
			w.preempt()
			m.begin(w)
		}
	}
}

// predecessor reports whether a static pod must wait for another pod of its name to end. For other pods the API server keeps names unique.
func (m *Manager) predecessor(p *v1.Pod) bool {
	if !podspec.IsStatic(p) {
		return false
	}
	for uid, w := range m.workers {
		view := w.view.Load()
		if uid != p.UID && view.Pod.Name == p.Name && view.Pod.Namespace == p.Namespace && view.Phase != pod.Terminated {
			return true
		}
	}
	return false
}

// newWorker returns a worker that does not run yet. known means that the engine may have something of the pod.
func (m *Manager) newWorker(d pod.Desired, known bool) *worker {
	return newWorker(&m.cfg, &m.parts, d, known, m.start, m)
}

// begin starts a worker.
func (m *Manager) begin(w *worker) {
	m.add(w)
	m.crew.Go(func() { w.run(m.ctx) })
}

// finish starts a worker that cleans up a pod that no source wants.
func (m *Manager) finish(left *v1.Pod) {
	w := m.newWorker(pod.Desired{Pod: left}, true)
	w.leaving = true
	w.remove(nil)
	m.begin(w)
}

// released implements owner.
func (m *Manager) released(uid types.UID) { m.inbox.put(func() { m.release(uid) }) }

// release frees what a pod held, and retries the pods that wait for it. Idempotent.
func (m *Manager) release(uid types.UID) {
	m.parts.Admitter.Release(uid)
	m.allocations.forget(uid)
	m.inbox.put(m.admitWaiting)
}

// ended implements owner.
func (m *Manager) ended(uid types.UID) {
	m.inbox.put(func() {
		m.remove(uid)
		m.admitWaiting()
	})
}

// admitWaiting retries the pods that wait for another pod's end.
func (m *Manager) admitWaiting() {
	if m.ctx.Err() != nil {
		return
	}
	waiting := slices.SortedFunc(maps.Values(m.waiting), func(a, b pod.Desired) int { return cmp.Compare(a.Pod.UID, b.Pod.UID) })
	for _, d := range waiting {
		if m.worker(d.Pod.UID) == nil && !m.predecessor(d.Pod) {
			delete(m.waiting, d.Pod.UID)
			m.want(d, false)
		}
	}
	m.retryResizes()
	m.dropStrays()
}

// dropStrays deletes the mirror pods of static pods that have ended here.
func (m *Manager) dropStrays() {
	for uid, mirror := range m.strays {
		busy := false
		for _, w := range m.workers {
			view := w.view.Load()
			busy = busy || podspec.IsStatic(view.Pod) && view.Pod.Name == mirror.Name && view.Pod.Namespace == mirror.Namespace && view.Phase != pod.Terminated
		}
		if busy || m.parts.Status == nil {
			continue
		}
		delete(m.strays, uid)
		m.crew.do(m.ctx, func(ctx context.Context) error { return m.parts.Status.Delete(ctx, mirror) }, func(err error) {
			if err != nil && m.ctx.Err() == nil {
				klog.V(1).InfoS("Cannot delete the mirror of a removed static pod", "pod", klog.KObj(mirror), "err", err)
				m.inbox.put(func() { m.strays[uid] = mirror }) // the resync retries
			}
		})
	}
}

// changed passes on a hint from the engine.
func (m *Manager) changed(uid types.UID) {
	if uid == "" {
		m.resync()
		return
	}
	if w := m.worker(uid); w != nil {
		w.inbox.put(w.observer.hint)
		return
	}
	if !m.synced {
		return
	}
	var seen pod.Observed
	m.crew.do(m.ctx, func(ctx context.Context) (err error) {
		seen, err = m.parts.Runtime.Observe(ctx, uid)
		return err
	}, func(err error) {
		if err == nil {
			m.inbox.put(func() { m.orphans(map[types.UID]pod.Observed{uid: seen}) })
		}
	})
}

// resync observes everything that the engine has in one call.
func (m *Manager) resync() {
	if m.relisting {
		return
	}
	m.relisting = true
	began := m.parts.Clock.Now()
	var all map[types.UID]pod.Observed
	m.crew.do(m.ctx, func(ctx context.Context) (err error) {
		all, err = m.parts.Runtime.ObserveAll(ctx)
		return err
	}, func(err error) {
		m.inbox.put(func() {
			m.relisting = false
			if err != nil {
				klog.V(1).InfoS("Cannot list containers; will try again", "err", err)
				return
			}
			for uid, w := range m.workers {
				w.inbox.put(func() { w.observer.relisted(all[uid], began); w.resync() })
			}
			m.orphans(all)
			m.leftovers()
			m.trimDead()
			m.dropStrays()
			m.retryResizes()
		})
	})
}

// orphans ends pods that the engine has and no source wants.
func (m *Manager) orphans(all map[types.UID]pod.Observed) {
	if !m.synced || m.ctx.Err() != nil {
		return
	}
	for uid, seen := range all {
		if m.worker(uid) != nil || m.waiting[uid].Pod != nil || len(seen.Containers)+len(seen.Sandboxes) == 0 {
			continue
		}
		klog.V(1).InfoS("Ending a pod that is no longer in any source", "namespace", seen.Namespace, "name", seen.Name, "uid", uid)
		m.finish(orphanPod(uid, seen))
	}
}

// orphanPod reconstructs the pod from the engine's labels.
func orphanPod(uid types.UID, seen pod.Observed) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: seen.Namespace, Name: seen.Name}}
	pod.Spec.TerminationGracePeriodSeconds = &seen.Grace
	known := map[string]bool{}
	for _, c := range seen.Containers {
		if known[c.Name] {
			continue
		}
		known[c.Name] = true
		spec := v1.Container{Name: c.Name, Image: c.Image}
		switch c.Kind {
		case podspec.Init:
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, spec)
		case podspec.Ephemeral:
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(spec)})
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, spec)
		}
	}
	return pod
}

// leftovers cleans up the directories and cgroups of removed pods.
func (m *Manager) leftovers() {
	if !m.synced {
		return
	}
	m.crew.do(m.ctx, func(ctx context.Context) error {
		uids, err := m.parts.Volumes.Leftovers()
		if m.parts.Cgroups != nil {
			more, problem := m.parts.Cgroups.Leftovers()
			uids, err = append(uids, more...), errors.Join(err, problem)
		}
		m.inbox.put(func() {
			for _, uid := range uids {
				if m.worker(uid) != nil || m.waiting[uid].Pod != nil {
					continue
				}
				m.finish(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}) // finds nothing to stop, cleans up, and ends
			}
		})
		return err
	}, func(err error) {
		if err != nil && m.ctx.Err() == nil {
			klog.ErrorS(err, "Cannot list what removed pods have left behind")
		}
	})
}
