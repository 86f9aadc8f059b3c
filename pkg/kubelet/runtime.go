package kubelet

import (
	"context"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/stats"
)

// runtime is the engine for pods. It counts calls, and notifies the pod network of new pods and of an engine that was unavailable.
type runtime struct {
	pod.Runtime
	network interface {
		Joined()
		Kick()
	}
	counters *stats.Counters
	relays   sync.WaitGroup
}

func newRuntime(engine pod.Runtime, network interface {
	Joined()
	Kick()
}, counters *stats.Counters) *runtime {
	return &runtime{Runtime: engine, network: network, counters: counters}
}

// Apply implements pod.Runtime.
func (r *runtime) Apply(ctx context.Context, p *v1.Pod, step pod.Step) error {
	begin := time.Now()
	err := r.Runtime.Apply(ctx, p, step)
	if step.Action == pod.CreateSandbox {
		r.network.Joined()
	}
	r.counters.Operation(strings.ReplaceAll(string(step.Action), "-", "_"), time.Since(begin), err)
	return err
}

// ObserveAll implements pod.Runtime.
func (r *runtime) ObserveAll(ctx context.Context) (map[types.UID]pod.Observed, error) {
	begin := time.Now()
	all, err := r.Runtime.ObserveAll(ctx)
	end := time.Now()
	r.counters.Operation("list", end.Sub(begin), err)
	if err == nil {
		r.counters.Relisted(begin, end)
	}
	return all, err
}

// Changes implements pod.Runtime. Its goroutine ends with ctx; wait waits for it.
func (r *runtime) Changes(ctx context.Context) <-chan types.UID {
	in, out := r.Runtime.Changes(ctx), make(chan types.UID)
	r.relays.Go(func() {
		defer close(out)
		for uid := range in {
			if uid == "" {
				r.network.Kick()
			}
			select {
			case out <- uid:
			case <-ctx.Done():
				return
			}
		}
	})
	return out
}

// wait returns when the goroutines of Changes have ended.
func (r *runtime) wait() { r.relays.Wait() }
