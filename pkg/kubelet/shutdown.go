package kubelet

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
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Shutdown is how long pods may take to end when the host shuts down (KEP-2000, KubeletConfiguration's shutdownGracePeriod and
// shutdownGracePeriodCriticalPods). Total 0: they are not ended by us, and start again with the host.
type Shutdown struct {
	Grace    time.Duration // in all
	Critical time.Duration // the part at the end in which critical pods end
	// ByPriority is said instead of both (KEP-2712, shutdownGracePeriodByPodPriority): classes of pods, which end one after the other, those of the
	// lowest priority first. A pod is of the class with the highest priority that is not above its own, or of the lowest.
	ByPriority []ShutdownClass
}

// ShutdownClass is a class of pods and the time that they have.
type ShutdownClass struct {
	Priority int32
	Grace    time.Duration
}

// Total is how long it may take in all.
func (s Shutdown) Total() (total time.Duration) {
	for _, class := range s.classes() {
		total += class.Grace
	}
	return total
}

// classes are those of a Shutdown, the lowest first.
func (s Shutdown) classes() []ShutdownClass {
	if len(s.ByPriority) == 0 {
		return []ShutdownClass{{0, s.Grace - s.Critical}, {podspec.SystemCriticalPriority, s.Critical}}
	}
	return slices.SortedStableFunc(slices.Values(s.ByPriority), func(a, b ShutdownClass) int { return cmp.Compare(a.Priority, b.Priority) })
}

// classOf is the index of a pod's class. A critical pod without a priority, as a static one may be, has the least of a critical one.
func classOf(p *v1.Pod, classes []ShutdownClass) int {
	priority := ptr.Deref(p.Spec.Priority, 0)
	if podspec.Critical(p) {
		priority = max(priority, podspec.SystemCriticalPriority)
	}
	above := slices.IndexFunc(classes, func(c ShutdownClass) bool { return c.Priority > priority })
	if above < 0 {
		above = len(classes)
	}
	return max(above-1, 0)
}

// Check says what is wrong.
func (s Shutdown) Check() error {
	seen := map[int32]bool{}
	for _, class := range s.ByPriority {
		switch {
		case s.Grace != 0 || s.Critical != 0:
			return errors.New("shutdownGracePeriodByPodPriority: want it, or shutdownGracePeriod and shutdownGracePeriodCriticalPods, not both")
		case class.Grace < 0:
			return fmt.Errorf("shutdownGracePeriodByPodPriority: priority %d: shutdownGracePeriodSeconds: %.0f: want 0 or more", class.Priority, class.Grace.Seconds())
		case seen[class.Priority]:
			return fmt.Errorf("shutdownGracePeriodByPodPriority: priority %d: want each priority once", class.Priority)
		}
		seen[class.Priority] = true
	}
	switch {
	case s.Grace < 0:
		return fmt.Errorf("shutdownGracePeriod: %s: want 0 or more", s.Grace)
	case s.Critical < 0 || s.Critical > s.Grace:
		return fmt.Errorf("shutdownGracePeriodCriticalPods: %s: want 0 to %s, which is shutdownGracePeriod", s.Critical, s.Grace)
	case s.Grace > 0 && s.Grace < time.Second:
		return fmt.Errorf("shutdownGracePeriod: %s: want at least 1s, or 0", s.Grace)
	}
	return nil
}

// What pods are told, in upstream's words.
var (
	shutdownRejection = pod.Rejection{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
	shutdownEviction  = pod.Rejection{Reason: "Terminated", Message: "Pod was terminated in response to imminent node shutdown.",
		Disruption: "Pod was terminated in response to imminent node shutdown."}
)

// shutdown ends pods when the host shuts down: first those that nobody needs for the others' end.
type shutdown struct {
	times  Shutdown
	began  atomic.Bool
	tell   func() // has the Node say that it shuts down
	pods   func() []pod.View
	evict  func(types.UID, pod.Eviction)
	tick   <-chan time.Time // when to look again; nil: four times a second
	before func(d time.Duration) (context.Context, context.CancelFunc)
}

func (k *Kubelet) newShutdown() *shutdown {
	return &shutdown{times: k.cfg.Shutdown, tell: func() { k.node.Kick() }, pods: func() []pod.View { return k.pods.Snapshot() },
		evict: func(uid types.UID, e pod.Eviction) { k.pods.Evict(uid, e) },
		before: func(d time.Duration) (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), d)
		}}
}

// run returns when the pods have ended, or their time is over.
func (s *shutdown) run() {
	s.began.Store(true)
	s.tell()
	if s.times.Total() == 0 {
		return
	}
	classes := s.times.classes()
	klog.InfoS("Ending pods before the host shuts down", "grace", s.times.Total(), "classes", classes)
	for i, class := range classes {
		s.end(class.Grace, func(p *v1.Pod) bool { return classOf(p, classes) == i })
	}
}

// end evicts the pods that match and waits for them. The workers tell nobody when a pod has ended, so that it looks again and again.
func (s *shutdown) end(grace time.Duration, matches func(*v1.Pod) bool) {
	ctx, cancel := s.before(grace)
	defer cancel()
	tick := s.tick
	if tick == nil {
		ticker := time.NewTicker(250 * time.Millisecond)
		defer ticker.Stop()
		tick = ticker.C
	}
	asked := map[types.UID]bool{}
	for {
		left := 0
		for _, view := range s.pods() {
			if !matches(view.Pod) || view.Phase == pod.Terminated {
				continue
			}
			left++
			if !asked[view.Pod.UID] {
				asked[view.Pod.UID] = true
				s.evict(view.Pod.UID, pod.Eviction{Rejection: shutdownEviction, Grace: grace})
			}
		}
		if left == 0 {
			return
		}
		select {
		case <-tick:
		case <-ctx.Done():
			klog.InfoS("Pods have not ended in time before the shutdown", "left", left, "grace", grace)
			return
		}
	}
}

// admitter lets no pod in from the beginning of a shutdown.
func (s *shutdown) admitter(inner pod.Admitter) pod.Admitter { return &closing{inner, s} }

type closing struct {
	pod.Admitter
	shutdown *shutdown
}

// Admit implements pod.Admitter.
func (c *closing) Admit(p *v1.Pod) *pod.Rejection {
	if c.shutdown.began.Load() {
		rejection := shutdownRejection
		return &rejection
	}
	return c.Admitter.Admit(p)
}

// untilShutdown is the context of the parts: it goes on beyond that of Run for as long as pods are ended before a shutdown.
func (k *Kubelet) untilShutdown(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), daemon.ErrShutdown) {
			k.shutdown.run()
		}
		cancel()
	})
	return inner, func() { stop(); cancel() }
}
