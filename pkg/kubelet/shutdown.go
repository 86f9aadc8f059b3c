package kubelet

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/pod"
)

// Shutdown is how long pods may take to end when the host shuts down (KEP-2000, KubeletConfiguration's shutdownGracePeriod and
// shutdownGracePeriodCriticalPods). Grace 0: they are not ended by us, and start again with the host.
type Shutdown struct {
	Grace    time.Duration // in all
	Critical time.Duration // the part at the end in which critical pods end
}

// Check says what is wrong.
func (s Shutdown) Check() error {
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
	if s.times.Grace == 0 {
		return
	}
	klog.InfoS("Ending pods before the host shuts down", "grace", s.times.Grace, "critical", s.times.Critical)
	s.end(s.times.Grace-s.times.Critical, func(p *v1.Pod) bool { return !pod.Critical(p) })
	s.end(s.times.Critical, pod.Critical)
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
