// Package shutdown ends this node's pods in an orderly way before the host shuts down (KEP-2000, KEP-2712).
//
//	daemon.ErrShutdown --> Manager: one class of pods after the other --pod.Eviction--> pods, their volumes; then volumes of the node
//	                          |
//	                        State --> Admitter: no new pods; the Node: not ready
//
// The State is separate from the Manager because admission needs it before pods exist.
package shutdown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/wake"
)

// Config is how long pods may take to end when the host shuts down (KubeletConfiguration's shutdownGracePeriod and
// shutdownGracePeriodCriticalPods). If Total is 0, the kubelet does not end them, and they start again with the host.
type Config struct {
	Grace    time.Duration // in total
	Critical time.Duration // the last part of Grace, for critical pods
	// ByPriority replaces both (shutdownGracePeriodByPodPriority): classes of pods that end one after another, lowest priority first. A pod
	// is in the class with the highest priority that does not exceed its own, or else in the lowest class.
	ByPriority []Class
}

// Class is a class of pods with their time to end.
type Class struct {
	Priority int32
	Grace    time.Duration
}

// Total is the time for all classes together.
func (c Config) Total() (total time.Duration) {
	for _, class := range c.classes() {
		total += class.Grace
	}
	return total
}

// classes are the classes, lowest priority first.
func (c Config) classes() []Class {
	if len(c.ByPriority) == 0 {
		return []Class{{0, c.Grace - c.Critical}, {podspec.SystemCriticalPriority, c.Critical}}
	}
	return slices.SortedStableFunc(slices.Values(c.ByPriority), func(a, b Class) int { return cmp.Compare(a.Priority, b.Priority) })
}

// classOf is the index of a pod's class. A critical pod without a priority, such as a static pod, has the lowest critical priority.
func classOf(p *v1.Pod, classes []Class) int {
	priority := ptr.Deref(p.Spec.Priority, 0)
	if podspec.Critical(p) {
		priority = max(priority, podspec.SystemCriticalPriority)
	}
	above := slices.IndexFunc(classes, func(c Class) bool { return c.Priority > priority })
	if above < 0 {
		above = len(classes)
	}
	return max(above-1, 0)
}

// Check returns why the configuration is invalid.
func (c Config) Check() error {
	seen := map[int32]bool{}
	for _, class := range c.ByPriority {
		switch {
		case c.Grace != 0 || c.Critical != 0:
			return errors.New("shutdownGracePeriodByPodPriority: set either it, or shutdownGracePeriod and shutdownGracePeriodCriticalPods")
		case class.Grace < 0:
			return fmt.Errorf("shutdownGracePeriodByPodPriority: priority %d: shutdownGracePeriodSeconds: %.0f: want 0 or more", class.Priority, class.Grace.Seconds())
		case seen[class.Priority]:
			return fmt.Errorf("shutdownGracePeriodByPodPriority: priority %d: want each priority once", class.Priority)
		}
		seen[class.Priority] = true
	}
	switch {
	case c.Grace < 0:
		return fmt.Errorf("shutdownGracePeriod: %s: want 0 or more", c.Grace)
	case c.Critical < 0 || c.Critical > c.Grace:
		return fmt.Errorf("shutdownGracePeriodCriticalPods: %s: want 0 to %s, which is shutdownGracePeriod", c.Critical, c.Grace)
	case c.Grace > 0 && c.Grace < time.Second:
		return fmt.Errorf("shutdownGracePeriod: %s: want at least 1s, or 0", c.Grace)
	}
	return nil
}

// Upstream's reasons and messages.
var (
	rejection = pod.Rejection{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
	eviction  = pod.Rejection{Reason: "Terminated", Message: "Pod was terminated in response to imminent node shutdown.",
		Disruption: "Pod was terminated in response to imminent node shutdown."}
)

// State records whether the host is shutting down. The zero value means no. Any goroutine may use it.
type State struct{ begun atomic.Bool }

// Begun reports whether the shutdown has begun. It never becomes false again.
func (s *State) Begun() bool { return s.begun.Load() }

// Admitter refuses all pods once a shutdown has begun; until then inner decides.
func (s *State) Admitter(inner pod.Admitter) pod.Admitter { return &closing{inner, s} }

type closing struct {
	pod.Admitter
	state *State
}

// Admit implements pod.Admitter.
func (c *closing) Admit(p *v1.Pod) *pod.Rejection {
	if c.state.Begun() {
		no := rejection
		return &no
	}
	return c.Admitter.Admit(p)
}

// Pods are this node's pods (worker.Manager).
type Pods interface {
	Snapshot() []pod.View
	// Evict ends a pod. Evicting a missing or ending pod is not an error.
	Evict(types.UID, pod.Eviction)
}

// Volumes are this node's volumes that are mounted or connected once for all pods, such as disks of a SAN.
type Volumes interface {
	// InUse names those that the node has not released.
	InUse() []v1.UniqueVolumeName
}

// Manager ends pods when the host shuts down, the least important first.
type Manager struct {
	cfg     Config
	state   *State
	pods    Pods
	volumes Volumes     // nil: there are none
	node    wake.Signal // triggers a comparison of the Node's status
	clock   clock.WithTicker
}

// New returns a Manager, which is idle until the host shuts down. The Admitter must use the same state. node triggers an update of the
// Node's status, which changes when a shutdown begins.
func New(cfg Config, state *State, pods Pods, volumes Volumes, node wake.Signal, clock clock.WithTicker) *Manager {
	return &Manager{cfg: cfg, state: state, pods: pods, volumes: volumes, node: node, clock: clock}
}

// Context is the context for the kubelet's parts. If ctx ends because the host shuts down, it lasts until the pods have ended and volumes are
// released, or their time is over; otherwise it ends with ctx. cancel ends it and releases its resources.
func (m *Manager) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), daemon.ErrShutdown) {
			m.run(inner)
		}
		cancel()
	})
	return inner, func() { stop(); cancel() }
}

// run returns when the pods have ended and volumes are released, or their time is over.
func (m *Manager) run(ctx context.Context) {
	m.state.begun.Store(true)
	m.node.Send()
	if m.cfg.Total() == 0 {
		return
	}
	begun := m.clock.Now()
	classes := m.cfg.classes()
	klog.InfoS("Ending pods before the host shuts down", "grace", m.cfg.Total(), "classes", classes)
	for i, class := range classes {
		m.end(ctx, class.Grace, func(p *v1.Pod) bool { return classOf(p, classes) == i })
	}
	m.release(ctx, m.cfg.Total()-m.clock.Since(begun))
}

// end evicts the matching pods and waits for them to end. As with upstream's kubelet that includes their volumes, which a pod of the next class may serve.
func (m *Manager) end(ctx context.Context, grace time.Duration, matches func(*v1.Pod) bool) {
	asked := map[types.UID]bool{}
	left := 0
	ended := m.wait(ctx, grace, func() bool {
		left = 0
		for _, view := range m.pods.Snapshot() {
			uid := view.Pod.UID
			if !matches(view.Pod) || view.Left || view.Phase == pod.Terminated && !asked[uid] { // a volume that hangs since an earlier end delays no shutdown
				continue
			}
			left++
			if !asked[uid] {
				asked[uid] = true
				m.pods.Evict(uid, pod.Eviction{Rejection: eviction, Grace: grace})
			}
		}
		return left == 0
	})
	if !ended {
		klog.InfoS("Pods did not end in time before the shutdown", "left", left, "grace", grace)
	}
}

// release waits until the node has released the volumes of the pods that have ended: what the host itself unmounts, it may unmount without a network.
func (m *Manager) release(ctx context.Context, most time.Duration) {
	if m.volumes == nil {
		return
	}
	if !m.wait(ctx, most, func() bool { return len(m.volumes.InUse()) == 0 }) {
		klog.InfoS("Volumes were not released in time before the shutdown", "volumes", m.volumes.InUse())
	}
}

// lookEvery is the interval for checking pods and volumes while they end: they do not report it.
const lookEvery = 250 * time.Millisecond

// wait returns when done returns true or ctx ends; with false when most is over before.
func (m *Manager) wait(ctx context.Context, most time.Duration, done func() bool) bool {
	over := m.clock.NewTimer(most)
	defer over.Stop()
	ticker := m.clock.NewTicker(lookEvery)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return true
		case <-ticker.C():
		case <-over.C():
			return false
		}
	}
	return true
}
