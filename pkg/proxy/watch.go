package proxy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Watch feeds an Inbox from the API server: Services and EndpointSlices, Nodes and ServiceCIDRs. The server omits
// Services and slices that belong to another proxy or are headless.
type Watch struct {
	run    []func(context.Context)
	checks []cache.DoneChecker
	ranges <-chan struct{} // closed once they are known, or known to be unavailable
	synced chan struct{}
}

// NewWatch returns a Watch that has sent no requests yet. nodes is an informer of all Nodes that the caller runs (see
// NodeInformer). resync is the resync period of the informers.
func NewWatch(inbox *Inbox, client clientset.Interface, nodes cache.SharedIndexInformer, resync time.Duration) (*Watch, error) {
	w := &Watch{synced: make(chan struct{})}
	noProxy := func(o *metav1.ListOptions) { o.LabelSelector = "!" + labelProxyName }
	noHeadless := func(o *metav1.ListOptions) { o.LabelSelector = "!" + labelProxyName + ",!" + labelHeadless }
	for _, i := range []cache.Controller{
		informer(resync, &v1.Service{}, clientset.ListerWatcher(client, client.Services(""), noProxy), feed{
			set: func(o any) { inbox.SetService(o.(*v1.Service)) },
			del: func(namespace, name string) { inbox.DeleteService(ServiceName{Namespace: namespace, Name: name}) }}),
		informer(resync, &discovery.EndpointSlice{}, clientset.ListerWatcher(client, client.EndpointSlices(""), noHeadless), feed{
			set: func(o any) { inbox.SetSlice(o.(*discovery.EndpointSlice)) }, del: inbox.DeleteSlice}),
	} {
		w.run, w.checks = append(w.run, i.RunWithContext), append(w.checks, i.HasSyncedChecker())
	}
	handler, err := nodes.AddEventHandler(feed{
		set: func(o any) { inbox.SetNode(o.(*v1.Node)) }, del: func(_, name string) { inbox.DeleteNode(name) }}.handler())
	if err != nil {
		return nil, fmt.Errorf("cannot watch nodes: %w", err)
	}
	w.checks = append(w.checks, handler.HasSyncedChecker())
	return w, w.addRanges(inbox, client, resync)
}

// Synced is closed once the Inbox has received everything that existed at start.
func (w *Watch) Synced() <-chan struct{} { return w.synced }

// Run watches until ctx ends, and returns when all its goroutines have ended.
func (w *Watch) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, run := range w.run {
		group.Go(func() { run(ctx) })
	}
	if !cache.WaitFor(ctx, "services, endpoint slices and nodes", w.checks...) {
		return
	}
	select {
	case <-w.ranges:
		close(w.synced)
	case <-ctx.Done():
	}
}

// addRanges watches the cluster's ranges of service addresses. It also finishes if the API server does not have or show
// them: before 1.33 there are none, and from then on upstream's role system:node-proxier may list and watch them.
// Without them, only the cluster IPs themselves are refused to other Services: no range is assumed.
func (w *Watch) addRanges(inbox *Inbox, client clientset.Interface, resync time.Duration) error {
	known := make(chan struct{})
	done := sync.OnceFunc(func() { close(known) })
	unknown := sync.OnceFunc(func() {
		klog.V(1).InfoS("Cannot read ServiceCIDRs; refusing only external addresses that are a Service's cluster IP")
	})
	informer := cache.NewSharedIndexInformer(clientset.ListerWatcher(client, client.ServiceCIDRs(), nil), &networking.ServiceCIDR{}, resync, cache.Indexers{})
	handler, err := informer.AddEventHandler(feed{
		set: func(o any) { inbox.putRange(o.(*networking.ServiceCIDR).Name, o.(*networking.ServiceCIDR)) },
		del: func(_, name string) { inbox.putRange(name, nil) }}.handler())
	if err == nil {
		err = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
				cache.DefaultWatchErrorHandler(ctx, r, err)
				return
			}
			unknown()
			done()
		})
	}
	if err != nil {
		return fmt.Errorf("cannot watch the ranges of service addresses: %w", err)
	}
	w.ranges = known
	w.run = append(w.run, informer.RunWithContext, func(ctx context.Context) {
		if cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
			done()
		}
	})
	return nil
}

// NodeInformer watches all Nodes and keeps what the proxy and its routes read.
func NodeInformer(client clientset.Interface, resync time.Duration) (cache.SharedIndexInformer, error) {
	informer := cache.NewSharedIndexInformer(clientset.ListerWatcher(client, client.Nodes(), nil), &v1.Node{}, resync, cache.Indexers{})
	if err := informer.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("cannot watch nodes: %w", err)
	}
	return informer, nil
}

// feed receives an informer's objects.
type feed struct {
	set func(object any)
	del func(namespace, name string)
}

func (f feed) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: f.set,
		UpdateFunc: func(before, now any) {
			if before != now {
				f.set(now)
			}
		},
		DeleteFunc: func(object any) {
			key, err := cache.DeletionHandlingObjectToName(object)
			if err != nil {
				klog.ErrorS(err, "Cannot read the name of a deleted object; ignored its deletion")
				return
			}
			f.del(key.Namespace, key.Name)
		},
	}
}

// informer keeps the objects of one kind and feeds each change, after removing what the proxy does not read.
func informer(resync time.Duration, kind runtime.Object, from cache.ListerWatcher, f feed) cache.Controller {
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: from,
		ObjectType:    kind,
		ResyncPeriod:  resync,
		Transform:     trim,
		Handler:       f.handler(),
	})
	return controller
}

// trim removes what Build does not read: with ten thousand Services that is most of the memory.
func trim(object any) (any, error) {
	meta, ok := object.(metav1.Object)
	if !ok {
		return object, nil
	}
	meta.SetManagedFields(nil)
	meta.SetOwnerReferences(nil)
	switch o := object.(type) {
	case *v1.Service:
		o.Labels = keep(o.Labels, labelProxyName)
		o.Annotations, o.Spec.Selector, o.Status.Conditions = nil, nil, nil
	case *discovery.EndpointSlice:
		o.Labels = keep(o.Labels, discovery.LabelServiceName, labelProxyName, labelHeadless)
		o.Annotations = keep(o.Annotations, v1.EndpointsLastChangeTriggerTime)
		o.GenerateName, o.UID = "", ""
		o.Endpoints = slices.Clone(o.Endpoints) // without the room that decoding left, nearly half with five endpoints
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.TargetRef, e.Zone, e.Hostname = nil, nil, nil
			e.Conditions = discovery.EndpointConditions{Ready: shared(e.Conditions.Ready), Serving: shared(e.Conditions.Serving),
				Terminating: shared(e.Conditions.Terminating)}
		}
	case *v1.Node:
		o.Annotations = vxlan.Known(o.Annotations) // package routes reads them
		o.Status = v1.NodeStatus{Addresses: o.Status.Addresses, DaemonEndpoints: o.Status.DaemonEndpoints}
	}
	return object, nil
}

// keep returns the entries of m with the keys; nil: none.
func keep(m map[string]string, keys ...string) (out map[string]string) {
	for _, key := range keys {
		if value, ok := m[key]; ok {
			if out == nil {
				out = make(map[string]string, 1)
			}
			out[key] = value
		}
	}
	return out
}

var yes, no = true, false

// shared returns a pointer to one of two values that all endpoints share; they are never written.
func shared(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &yes
	}
	return &no
}
