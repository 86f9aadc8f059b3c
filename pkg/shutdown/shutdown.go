// Package shutdown ends this node's pods in an orderly way before the host shuts down (KEP-2000, KEP-2712).
//
//	daemon.ErrShutdown --> Manager: one class of pods after the other --pod.Eviction--> pods
//	                          |
//	                        State --> Admitter: no new pods; the Node: not ready
//
// The State is apart from the Manager because admission needs it before there are pods that a Manager could end.
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
// shutdownGracePeriodCriticalPods). Total 0: the kubelet does not end them, and they start again with the host.
type Config struct {
	Grace    time.Duration // in all
	Critical time.Duration // the part at the end in which critical pods end
	// ByPriority replaces both (shutdownGracePeriodByPodPriority): classes of pods, which end one after the other, those of the
	// lowest priority first. A pod is of the class with the highest priority that is not above its own, or of the lowest.
	ByPriority []Class
}

// Class is a class of pods and the time that they have to end.
type Class struct {
	Priority int32
	Grace    time.Duration
}

// Total is how long it may take altogether.
func (c Config) Total() (total time.Duration) {
	for _, class := range c.classes() {
		total += class.Grace
	}
	return total
}

// classes are the classes, the lowest first.
func (c Config) classes() []Class {
	if len(c.ByPriority) == 0 {
		return []Class{{0, c.Grace - c.Critical}, {podspec.SystemCriticalPriority, c.Critical}}
	}
	return slices.SortedStableFunc(slices.Values(c.ByPriority), func(a, b Class) int { return cmp.Compare(a.Priority, b.Priority) })
}

// classOf is the index of a pod's class. A critical pod without a priority, as a static one may be, has the least of a critical one.
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

// Check says what is wrong.
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

// What pods are told, in upstream's words.
var (
	rejection = pod.Rejection{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
	eviction  = pod.Rejection{Reason: "Terminated", Message: "Pod was terminated in response to imminent node shutdown.",
		Disruption: "Pod was terminated in response to imminent node shutdown."}
)

// State says whether the host is shutting down. The zero value is one that is not. Any goroutine may use it.
type State struct{ begun atomic.Bool }

// Begun says whether the shutdown has begun. It does not end.
func (s *State) Begun() bool { return s.begun.Load() }

// Admitter lets no pod in from the beginning of a shutdown, and asks inner before.
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

// Pods are those of this node (worker.Manager).
type Pods interface {
	Snapshot() []pod.View
	// Evict ends a pod. One that ends already, or is gone, is no error.
	Evict(types.UID, pod.Eviction)
}

// Manager ends pods when the host shuts down, the less important ones first.
type Manager struct {
	cfg   Config
	state *State
	pods  Pods
	node  wake.Signal // compares the Node's status
	clock clock.WithTicker
}

// New makes a Manager, which does nothing before the host shuts down. Its State is that of the Admitter; node wakes what keeps the Node's
// status, which is another one from then on.
func New(cfg Config, state *State, pods Pods, node wake.Signal, clock clock.WithTicker) *Manager {
	return &Manager{cfg: cfg, state: state, pods: pods, node: node, clock: clock}
}

// Context is that of the kubelet's parts: when ctx ends because the host shuts down, it lasts until the pods have ended or their time is
// over; otherwise it ends with ctx. cancel ends it and frees what it needs.
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

// run returns when the pods have ended, or their time is over.
func (m *Manager) run(ctx context.Context) {
	m.state.begun.Store(true)
	m.node.Send()
	if m.cfg.Total() == 0 {
		return
	}
	classes := m.cfg.classes()
	klog.InfoS("Ending pods before the host shuts down", "grace", m.cfg.Total(), "classes", classes)
	for i, class := range classes {
		m.end(ctx, class.Grace, func(p *v1.Pod) bool { return classOf(p, classes) == i })
	}
}

// lookEvery is how often pods are looked at while they end: workers do not report it.
const lookEvery = 250 * time.Millisecond

// end evicts the pods that match and waits for them.
func (m *Manager) end(ctx context.Context, grace time.Duration, matches func(*v1.Pod) bool) {
	over := m.clock.NewTimer(grace)
	defer over.Stop()
	ticker := m.clock.NewTicker(lookEvery)
	defer ticker.Stop()
	asked := map[types.UID]bool{}
	for {
		left := 0
		for _, view := range m.pods.Snapshot() {
			if !matches(view.Pod) || view.Phase == pod.Terminated {
				continue
			}
			left++
			if !asked[view.Pod.UID] {
				asked[view.Pod.UID] = true
				m.pods.Evict(view.Pod.UID, pod.Eviction{Rejection: eviction, Grace: grace})
			}
		}
		if left == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-over.C():
			klog.InfoS("Pods did not end in time before the shutdown", "left", left, "grace", grace)
			return
		}
	}
}
