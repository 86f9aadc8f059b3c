package source

import (
	"context"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/wake"
)

// gathering collects the changes from the API server since the last batch was taken.
type gathering struct {
	changed wake.Signal

	mu   sync.Mutex
	next batch
}

// set records a new or changed pod and replaces its earlier record.
func (g *gathering) set(pod *v1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next.set = append(slices.DeleteFunc(g.next.set, func(p *v1.Pod) bool { return p.UID == pod.UID }), pod)
	g.changed.Send()
}

// remove records that a pod is gone.
func (g *gathering) remove(pod *v1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next.set = slices.DeleteFunc(g.next.set, func(p *v1.Pod) bool { return p.UID == pod.UID })
	g.next.gone = append(g.next.gone, pod)
	g.changed.Send()
}

// take returns the changes since the last call.
func (g *gathering) take() batch {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.next
	g.next = batch{source: "api"}
	return b
}

// followAPI lists and watches this node's pods. Changes that arrive while a batch waits for its receiver go into the next batch.
func (s *Source) followAPI(ctx context.Context, out chan<- batch) error {
	if s.cfg.Registered != nil {
		select {
		case <-s.cfg.Registered():
		case <-ctx.Done():
			return nil
		}
	}
	news := &gathering{changed: wake.New(), next: batch{source: "api"}}
	controller := s.informer(news)
	var informer sync.WaitGroup
	defer informer.Wait()
	informer.Go(func() { controller.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
		return fmt.Errorf("cannot list the pods of node %s: %w", s.cfg.NodeName, context.Cause(ctx))
	}
	b := news.take()
	b.full = true
	for {
		if b.full || len(b.set)+len(b.gone) > 0 {
			select {
			case <-ctx.Done():
				return nil
			case out <- b:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news.changed:
		}
		b = news.take()
	}
}

// informer watches this node's pods and records changes in news.
func (s *Source) informer(news *gathering) cache.Controller {
	selector := fields.OneTermEqualSelector("spec.nodeName", s.cfg.NodeName).String()
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: clientset.ListerWatcher(s.cfg.Client, s.cfg.Client.Pods(metav1.NamespaceAll), func(options *metav1.ListOptions) {
			options.FieldSelector = selector
		}),
		ObjectType: &v1.Pod{},
		Transform:  stripManagedFields,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { news.set(o.(*v1.Pod)) },
			UpdateFunc: func(old, o any) {
				if old.(*v1.Pod).UID != o.(*v1.Pod).UID {
					news.remove(old.(*v1.Pod)) // deleted and created again while the watch was interrupted
				}
				news.set(o.(*v1.Pod))
			},
			DeleteFunc: func(o any) {
				if late, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = late.Obj
				}
				if pod, ok := o.(*v1.Pod); ok {
					news.remove(pod)
				}
			},
		},
	})
	return controller
}

// stripManagedFields drops managedFields, which the agent never reads and which use the most memory.
func stripManagedFields(o any) (any, error) {
	if pod, ok := o.(*v1.Pod); ok {
		pod.ManagedFields = nil
	}
	return o, nil
}
