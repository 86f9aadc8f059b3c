package proxy

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/vxlan"
)

// inbox gathers changes until the loop takes them. Of several changes of one object the last counts. It is safe for concurrent use.
type inbox struct {
	ready chan struct{} // has an element while something is in the inbox

	mu *sync.Mutex
	at *batch
}

// batch is what changed; nil objects are gone.
type batch struct {
	services map[ServiceName]*v1.Service
	slices   map[types.NamespacedName]*discovery.EndpointSlice
	nodes    map[string]*v1.Node
	ranges   map[string]*networking.ServiceCIDR

	serviceEvents, sliceEvents int
}

func newInbox() inbox {
	return inbox{ready: make(chan struct{}, 1), mu: &sync.Mutex{}, at: newBatch()}
}

func newBatch() *batch {
	return &batch{services: map[ServiceName]*v1.Service{}, slices: map[types.NamespacedName]*discovery.EndpointSlice{}, nodes: map[string]*v1.Node{},
		ranges: map[string]*networking.ServiceCIDR{}}
}

func (i *inbox) put(change func(*batch)) {
	i.mu.Lock()
	change(i.at)
	i.mu.Unlock()
	select {
	case i.ready <- struct{}{}:
	default: // it has one
	}
}

func (i *inbox) take() batch {
	select {
	case <-i.ready:
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	taken := *i.at
	i.at = newBatch()
	return taken
}

// queued notes that a change has come in.
func (l *Loop) queued() {
	l.cfg.Health.Queued()
	l.cfg.Metrics.queued(l.cfg.Clock.Now())
}

// SetService takes a Service as it is now; it may be called from any goroutine.
func (l *Loop) SetService(s *v1.Service) {
	l.putService(ServiceName{Namespace: s.Namespace, Name: s.Name}, s)
}

// DeleteService takes the news that a Service is gone.
func (l *Loop) DeleteService(name ServiceName) { l.putService(name, nil) }

func (l *Loop) putService(name ServiceName, s *v1.Service) {
	l.queued()
	l.cfg.Metrics.servicesTotal.Inc()
	l.cfg.Metrics.servicesPending.Inc()
	l.inbox.put(func(b *batch) { b.services[name] = s; b.serviceEvents++ })
}

// SetSlice takes an EndpointSlice as it is now; it may be called from any goroutine.
func (l *Loop) SetSlice(slice *discovery.EndpointSlice) {
	l.putSlice(types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}, slice)
}

// DeleteSlice takes the news that an EndpointSlice is gone.
func (l *Loop) DeleteSlice(namespace, name string) {
	l.putSlice(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

func (l *Loop) putSlice(key types.NamespacedName, slice *discovery.EndpointSlice) {
	l.queued()
	l.cfg.Metrics.endpointsTotal.Inc()
	l.cfg.Metrics.endpointsPending.Inc()
	l.inbox.put(func(b *batch) { b.slices[key] = slice; b.sliceEvents++ })
}

// SetNode takes a Node, this or another, as it is now; it may be called from any goroutine.
func (l *Loop) SetNode(node *v1.Node) {
	l.inbox.put(func(b *batch) { b.nodes[node.Name] = node })
}

// DeleteNode takes the news that a Node is gone.
func (l *Loop) DeleteNode(name string) {
	l.inbox.put(func(b *batch) { b.nodes[name] = nil })
}

// Watch feeds the loop from the API server until ctx ends. The channel is closed when everything that exists has been fed. Services and
// slices that are another proxy's or headless are left out by the server already. nodes is an informer of all Nodes that the caller
// runs (see NodeInformer). resync is how often the cache is handed over again.
func (l *Loop) Watch(ctx context.Context, client kubernetes.Interface, nodes cache.SharedIndexInformer, resync time.Duration) (<-chan struct{}, error) {
	noProxy := func(o *metav1.ListOptions) { o.LabelSelector = "!" + labelProxyName }
	noHeadless := func(o *metav1.ListOptions) { o.LabelSelector = "!" + labelProxyName + ",!" + labelHeadless }
	core := client.CoreV1()
	informers := []cache.Controller{
		informer(client, resync, &v1.Service{}, listWatch(core.Services("").List, core.Services("").Watch, noProxy), feed{
			set: func(o any) { l.SetService(o.(*v1.Service)) },
			del: func(namespace, name string) { l.DeleteService(ServiceName{Namespace: namespace, Name: name}) }}),
		informer(client, resync, &discovery.EndpointSlice{},
			listWatch(client.DiscoveryV1().EndpointSlices("").List, client.DiscoveryV1().EndpointSlices("").Watch, noHeadless), feed{
				set: func(o any) { l.SetSlice(o.(*discovery.EndpointSlice)) }, del: l.DeleteSlice}),
	}
	handler, err := nodes.AddEventHandler(feed{
		set: func(o any) { l.SetNode(o.(*v1.Node)) }, del: func(_, name string) { l.DeleteNode(name) }}.handler())
	if err != nil {
		return nil, fmt.Errorf("cannot watch nodes: %w", err)
	}
	ranges, err := l.watchRanges(ctx, client, resync)
	if err != nil {
		return nil, err
	}
	checks := []cache.DoneChecker{handler.HasSyncedChecker()}
	for _, i := range informers {
		go i.RunWithContext(ctx)
		checks = append(checks, i.HasSyncedChecker())
	}
	synced := make(chan struct{})
	go func() {
		if !cache.WaitFor(ctx, "services, endpoint slices and nodes", checks...) {
			return
		}
		select {
		case <-ranges:
			close(synced)
		case <-ctx.Done():
		}
	}()
	return synced, nil
}

// watchRanges feeds the loop the ranges from which the cluster takes service addresses. The channel is closed once they are known, or when the
// API server does not have or show them: one before 1.33 has none, and upstream's role system:node-proxier may list and watch them from there on.
// Then only the cluster IPs themselves are kept from others: no range is assumed.
func (l *Loop) watchRanges(ctx context.Context, client kubernetes.Interface, resync time.Duration) (<-chan struct{}, error) {
	known := make(chan struct{})
	settled := sync.OnceFunc(func() { close(known) })
	unknown := sync.OnceFunc(func() {
		klog.V(1).InfoS("The ranges of cluster IPs are not known: external addresses are refused only where a Service has them as its cluster IP")
	})
	cidrs := client.NetworkingV1().ServiceCIDRs()
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(
		listWatch(cidrs.List, cidrs.Watch, func(*metav1.ListOptions) {}), client), &networking.ServiceCIDR{}, resync, cache.Indexers{})
	handler, err := informer.AddEventHandler(feed{
		set: func(o any) { l.putRange(o.(*networking.ServiceCIDR).Name, o.(*networking.ServiceCIDR)) },
		del: func(_, name string) { l.putRange(name, nil) }}.handler())
	if err == nil {
		err = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
				cache.DefaultWatchErrorHandler(ctx, r, err)
				return
			}
			unknown()
			settled()
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot watch the ranges of service addresses: %w", err)
	}
	go informer.RunWithContext(ctx)
	go func() {
		if cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
			settled()
		}
	}()
	return known, nil
}

// putRange takes a ServiceCIDR as it is now; nil: it is gone.
func (l *Loop) putRange(name string, cidr *networking.ServiceCIDR) {
	l.inbox.put(func(b *batch) { b.ranges[name] = cidr })
}

// NodeInformer watches all Nodes, of which it keeps what the proxy and its routes read.
func NodeInformer(client kubernetes.Interface, resync time.Duration) (cache.SharedIndexInformer, error) {
	core := client.CoreV1()
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(
		listWatch(core.Nodes().List, core.Nodes().Watch, func(*metav1.ListOptions) {}), client), &v1.Node{}, resync, cache.Indexers{})
	if err := informer.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("cannot watch nodes: %w", err)
	}
	return informer, nil
}

// feed is where an informer puts what it sees.
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
				klog.ErrorS(err, "Cannot name a deleted object")
				return
			}
			f.del(key.Namespace, key.Name)
		},
	}
}

// informer keeps the objects of one kind and feeds each change; what the proxy does not read is thrown away first.
func informer(client kubernetes.Interface, resync time.Duration, kind runtime.Object, lw *cache.ListWatch, f feed) cache.Controller {
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, client),
		ObjectType:    kind,
		ResyncPeriod:  resync,
		Transform:     trim,
		Handler:       f.handler(),
	})
	return controller
}

// listWatch binds the calls of a typed client.
func listWatch[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error),
	watcher func(context.Context, metav1.ListOptions) (watch.Interface, error), tweak func(*metav1.ListOptions)) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			tweak(&o)
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			tweak(&o)
			return watcher(ctx, o)
		},
	}
}

// trim throws away what Build does not read: with ten thousand services that is most of the memory.
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
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.TargetRef, e.Zone, e.Hostname = nil, nil, nil
			e.Conditions = discovery.EndpointConditions{Ready: shared(e.Conditions.Ready), Serving: shared(e.Conditions.Serving),
				Terminating: shared(e.Conditions.Terminating)}
		}
	case *v1.Node:
		o.Annotations = vxlan.Known(o.Annotations) // package routes reads them
		o.Status = v1.NodeStatus{Addresses: o.Status.Addresses}
	}
	return object, nil
}

// keep returns the entries of m with the keys, nil when there are none.
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

// shared points to one of two values that all endpoints share; nothing writes to them.
func shared(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &yes
	}
	return &no
}
