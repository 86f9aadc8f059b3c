// Package guard ends pods that take more of this node's disk than they may (kubelet).
//
//	pods with limits --volumes, engine--> Usage --Plan (pure)--> Evictions --> pod.Manager.Evict
//
// Only pods that have a limit are measured. Pressure on the node as a whole (evictionHard and its kin) is to become one more input of
// Plan; nothing decides on it yet.
package guard

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
)

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
	Clock clock.WithDelayedExecution
}

// Guard measures and evicts.
type Guard struct{ parts Parts }

// New makes a Guard, which does nothing before Run.
func New(parts Parts) *Guard { return &Guard{parts} }

const (
	// period is how often limits are looked at (upstream's monitoring interval).
	period = 10 * time.Second
	// rest is how much longer than a look took the pause after it is at least: looking takes a twentieth of one core at most.
	rest = 20
	// patience is how long one pod may take to be measured.
	patience = 30 * time.Second
)

// Run looks again and again until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	wait := period
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.parts.Clock.After(wait):
		}
		begin := g.parts.Clock.Now()
		g.look(ctx)
		wait = max(period, rest*g.parts.Clock.Since(begin))
	}
}

// look measures the pods that have limits and evicts those that Plan names.
func (g *Guard) look(ctx context.Context) {
	var usages []Usage
	for _, view := range g.parts.Pods() {
		if view.Phase != pod.Syncing || ctx.Err() != nil {
			continue
		}
		if limits := LimitsOf(view.Pod); limits.any() {
			usages = append(usages, g.measure(ctx, view, limits))
		}
	}
	for _, e := range Plan(usages) {
		klog.InfoS("Evicting pod", "pod", klog.KObj(e.Pod), "why", e.Message)
		g.parts.Evict(e.Pod.UID, pod.Eviction{Rejection: pod.Rejection{Reason: reason, Message: e.Message}, Grace: grace})
	}
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
