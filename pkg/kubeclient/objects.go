package kubeclient

import (
	"context"
	"fmt"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
)

// Objects reads the API objects that this node's pods refer to; it implements pod.Objects. The results are shared and read-only.
type Objects struct {
	client   clientset.Interface
	nodeName string
	clock    clock.Clock
	changed  *changes
	services cache.SharedIndexInformer
	node     cache.SharedIndexInformer
	watches  sync.WaitGroup
	// servicesRead is called after all Services were read; nil: not needed. Set before Run.
	servicesRead func()

	mu    sync.Mutex
	ctx   context.Context // Run's context; nil before Run
	pods  map[types.UID]map[key]struct{}
	items map[key]*item
	// handlers of RuntimeClasses by name, as last seen.
	handlers map[string]string
}

// NewObjects returns an Objects for the named node. It makes no requests before Run.
func NewObjects(client clientset.Interface, nodeName string) *Objects {
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	o := &Objects{
		client: client, nodeName: nodeName, clock: clock.RealClock{}, changed: newChanges(),
		services: cache.NewSharedIndexInformer(clientset.ListerWatcher(client, client.Services(metav1.NamespaceAll), nil), &v1.Service{}, 0, byNamespace),
		node: cache.NewSharedIndexInformer(clientset.ListerWatcher(client, client.Nodes(), func(options *metav1.ListOptions) {
			options.FieldSelector = only(nodeName).FieldSelector
		}), &v1.Node{}, 0, cache.Indexers{}),
		pods: map[types.UID]map[key]struct{}{}, items: map[key]*item{}, handlers: map[string]string{},
	}
	// Only a started informer refuses a transform.
	_ = o.services.SetTransform(withoutManagedFields)
	_ = o.node.SetTransform(withoutManagedFields)
	return o
}

// withoutManagedFields drops managedFields, which no reader here needs and which are often half of an object.
func withoutManagedFields(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// OnNode makes Objects call handler with each new state of our Node, in order and never concurrently; nil means that the Node was deleted.
// Call it before Run.
func (o *Objects) OnNode(handler func(*v1.Node)) error {
	deliver := func(obj any) {
		if n, ok := obj.(*v1.Node); ok && n.Name == o.nodeName {
			handler(n)
		}
	}
	_, err := o.node.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    deliver,
		UpdateFunc: func(_, obj any) { deliver(obj) },
		DeleteFunc: func(any) { handler(nil) },
	})
	if err != nil {
		return fmt.Errorf("cannot watch node %s: %w", o.nodeName, err)
	}
	return nil
}

// OnService makes Objects call handler for each Service that is new (before is nil), changed or deleted (now is nil), and read, which may be
// nil, once after all existing Services were read. Neither may block. Call it before Run.
func (o *Objects) OnService(handler func(before, now *v1.Service), read func()) error {
	service := func(obj any) *v1.Service {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		s, _ := obj.(*v1.Service) // nothing else is watched
		return s
	}
	_, err := o.services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { handler(nil, service(obj)) },
		UpdateFunc: func(before, now any) { handler(service(before), service(now)) },
		DeleteFunc: func(obj any) { handler(service(obj), nil) },
	})
	if err != nil {
		return fmt.Errorf("cannot watch services: %w", err)
	}
	if read != nil {
		o.servicesRead = read
	}
	return nil
}

// Run keeps the watches until ctx ends, and returns when all of them have ended. Call it once.
func (o *Objects) Run(ctx context.Context) error {
	o.mu.Lock()
	if o.ctx != nil {
		o.mu.Unlock()
		return fmt.Errorf("cannot run the object watches twice")
	}
	o.ctx = ctx
	for _, it := range o.items {
		o.begin(it)
	}
	o.mu.Unlock()
	for _, run := range []func(){
		func() { o.services.RunWithContext(ctx) }, func() { o.node.RunWithContext(ctx) }, func() { o.changed.run(ctx) },
	} {
		o.watches.Go(run)
	}
	if o.servicesRead != nil && cache.WaitFor(ctx, "", o.services.HasSyncedChecker()) {
		o.servicesRead()
	}
	<-ctx.Done()
	o.mu.Lock() // no watch begins after this: begin checks ctx under the lock
	for _, it := range o.items {
		it.stop()
	}
	o.mu.Unlock()
	o.watches.Wait()
	return nil
}

// begin starts the watch of it. o.mu is held and Run was called.
func (o *Objects) begin(it *item) {
	if o.ctx.Err() == nil {
		o.watches.Go(func() { o.follow(it.ended, it) })
	}
}

// Register implements pod.Objects.
func (o *Objects) Register(pod *v1.Pod) {
	want := references(pod)
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.pods[pod.UID]
	for k := range want {
		it := o.items[k]
		if it == nil {
			it = &item{key: k, users: map[types.UID]struct{}{}, known: make(chan struct{})}
			it.ended, it.stop = context.WithCancel(context.Background())
			o.items[k] = it
			if o.ctx != nil {
				o.begin(it)
			}
		}
		it.users[pod.UID] = struct{}{}
	}
	o.pods[pod.UID] = want
	for k := range before {
		if _, still := want[k]; !still {
			o.release(pod.UID, k)
		}
	}
}

// Unregister implements pod.Objects.
func (o *Objects) Unregister(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k := range o.pods[uid] {
		o.release(uid, k)
	}
	delete(o.pods, uid)
}

func (o *Objects) release(uid types.UID, k key) {
	it := o.items[k]
	delete(it.users, uid)
	if len(it.users) == 0 {
		it.stop()
		delete(o.items, k)
	}
}

// Secret implements pod.Objects. It answers from the watch, and waits for a watch that has just begun, until ctx ends. A Secret that no
// registered pod refers to is read from the API server.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	obj, watched, err := o.cached(ctx, key{secrets, namespace, name})
	if err != nil {
		return nil, err
	}
	if watched {
		return obj.(*v1.Secret), nil
	}
	return o.client.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// ConfigMap implements pod.Objects, like Secret.
func (o *Objects) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	obj, watched, err := o.cached(ctx, key{configMaps, namespace, name})
	if err != nil {
		return nil, err
	}
	if watched {
		return obj.(*v1.ConfigMap), nil
	}
	return o.client.ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
}

// cached reads a watched object.
func (o *Objects) cached(ctx context.Context, k key) (obj object, watched bool, err error) {
	o.mu.Lock()
	it := o.items[k]
	o.mu.Unlock()
	if it == nil {
		return nil, false, nil
	}
	select {
	case <-it.known:
	case <-ctx.Done():
		err = ctx.Err()
	case <-it.ended.Done():
		err = it.ended.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		it.missed = true
		if it.last != nil {
			err = it.last
		}
		return nil, true, fmt.Errorf("cannot read %s %s/%s: the API server has not answered yet: %w", k.kind, k.namespace, k.name, err)
	}
	if it.object == nil {
		it.missed = true
		return nil, true, it.err
	}
	return it.object, true, nil
}

// Token implements pod.Objects. It retries for a moment if the API server may not know of the pod yet.
func (o *Objects) Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	for started := o.clock.Now(); ; o.pause(ctx, 4*soon) {
		token, err := o.client.ServiceAccounts(namespace).CreateToken(ctx, serviceAccount, request, metav1.CreateOptions{})
		late := apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
		if err == nil || !late || ctx.Err() != nil || o.clock.Since(started) >= grace {
			return token, err
		}
	}
}

// Services implements pod.Objects.
func (o *Objects) Services(namespace string) ([]*v1.Service, error) {
	if !o.services.HasSynced() {
		return nil, fmt.Errorf("services have not been read from the API server yet")
	}
	return corelisters.NewServiceLister(o.services.GetIndexer()).Services(namespace).List(labels.Everything())
}

// AllServices returns the Services of all namespaces.
func (o *Objects) AllServices() ([]*v1.Service, error) { return o.Services(metav1.NamespaceAll) }

// Node implements pod.Objects.
func (o *Objects) Node() *v1.Node {
	obj, ok, err := o.node.GetStore().GetByKey(o.nodeName)
	if err != nil || !ok {
		return nil
	}
	return obj.(*v1.Node)
}

// Changed implements pod.Objects. The channel stays open when Run ends.
func (o *Objects) Changed() <-chan types.UID { return o.changed.out }
