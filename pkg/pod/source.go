package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/podspec"
)

// SourceConfig is where this node's pods come from. Each of the three may be absent.
type SourceConfig struct {
	NodeName string
	// Client is the API server; nil: none. Its pods are followed once what Registered returns is closed (nil: at once), for the Node's labels
	// and its allocatable resources decide what may run here. Static pods do not wait: the API server may be one of them.
	Client     kubernetes.Interface
	Registered func() <-chan struct{}
	// Path is a directory of manifests, or one manifest (kubelet field staticPodPath); "": none.
	Path string
	// PathPeriod is how often Path is read without an event (fileCheckFrequency); 0: 20 s.
	PathPeriod time.Duration
	// URL serves a pod or a list of pods (staticPodURL); "": none. URLHeader goes with each request (staticPodURLHeader).
	URL       string
	URLHeader map[string][]string
	// URLPeriod is how often URL is asked (httpCheckFrequency); 0: 20 s.
	URLPeriod time.Duration
	Clock     clock.WithTicker // nil: the real one
}

// Source merges the pods of all sources into one stream. It is the one place that knows which mirror pod belongs to which static pod:
// beyond it, a static pod has its own UID everywhere, and its mirror beside it.
type Source struct {
	cfg SourceConfig

	// What follows belongs to Run's goroutine.
	static  map[types.UID]*v1.Pod
	owner   map[types.UID]string // of a static pod: where it came from
	mirrors map[types.NamespacedName]*v1.Pod
	api     map[types.UID]*v1.Pod
	pending map[string]bool // sources that have not delivered their first list
}

const sourcePeriod = 20 * time.Second

// NewSource makes a Source.
func NewSource(cfg SourceConfig) *Source {
	cfg.PathPeriod, cfg.URLPeriod = cmp.Or(cfg.PathPeriod, sourcePeriod), cmp.Or(cfg.URLPeriod, sourcePeriod)
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	return &Source{
		cfg: cfg, static: map[types.UID]*v1.Pod{}, owner: map[types.UID]string{}, mirrors: map[types.NamespacedName]*v1.Pod{},
		api: map[types.UID]*v1.Pod{}, pending: map[string]bool{},
	}
}

// batch is what one source says: everything it has (full), or what changed.
type batch struct {
	source string // "api", "file" or "http"
	full   bool
	set    []*v1.Pod
	gone   []*v1.Pod
}

// Run delivers Updates until ctx ends. A source that cannot be read delivers nothing, and keeps what it delivered before.
func (s *Source) Run(ctx context.Context, out chan<- Update) error {
	ctx, cancel := context.WithCancel(ctx)
	var running crew
	defer running.Wait()
	defer cancel()
	batches := make(chan batch)
	follow := func(name string, f func(context.Context, chan<- batch) error) {
		s.pending[name] = true
		running.do(ctx, func(ctx context.Context) error { return f(ctx, batches) }, func(err error) {
			if err != nil && ctx.Err() == nil {
				klog.ErrorS(err, "A source of pods has ended", "source", name)
			}
		})
	}
	if s.cfg.Client != nil {
		follow("api", s.followAPI)
	}
	if s.cfg.Path != "" {
		follow("file", s.followPath)
	}
	if s.cfg.URL != "" {
		follow("http", s.followURL)
	}
	if len(s.pending) == 0 {
		return errors.New("cannot follow pods: neither an API server nor a static pod path or URL is given")
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case b := <-batches:
			u := s.merge(b)
			select {
			case out <- u:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// merge takes in a batch.
func (s *Source) merge(b batch) Update {
	var u Update
	waited := len(s.pending) > 0
	if b.source == "api" {
		s.mergeAPI(b, &u)
	} else {
		s.mergeStatic(b, &u)
	}
	delete(s.pending, b.source)
	u.Synced = len(s.pending) == 0
	if waited && u.Synced { // only now is it known which mirrors nobody owns
		for _, m := range s.mirrors {
			if s.staticOf(m) == nil {
				u.Strays = append(u.Strays, m)
			}
		}
	}
	slices.SortFunc(u.Set, func(a, b Desired) int { return cmp.Compare(a.Pod.UID, b.Pod.UID) })
	return u
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func (s *Source) staticOf(mirror *v1.Pod) *v1.Pod {
	for _, pod := range s.static {
		if nameOf(pod) == nameOf(mirror) {
			return pod
		}
	}
	return nil
}

// desired is a static pod with its mirror; generations are counted by the API server, so the mirror's is the pod's.
func (s *Source) desired(pod *v1.Pod) Desired {
	d := Desired{Pod: pod, Mirror: s.mirrors[nameOf(pod)]}
	if d.Mirror != nil {
		copied := *pod
		copied.Generation = d.Mirror.Generation
		d.Pod = &copied
	}
	return d
}

func (s *Source) mergeAPI(b batch, u *Update) {
	gone := slices.Clone(b.gone)
	if b.full {
		have := map[types.UID]bool{}
		for _, pod := range b.set {
			have[pod.UID] = true
		}
		for _, pod := range slices.Concat(slices.Collect(maps.Values(s.api)), slices.Collect(maps.Values(s.mirrors))) {
			if !have[pod.UID] {
				gone = append(gone, pod)
			}
		}
	}
	touched := map[types.NamespacedName]bool{}
	for _, pod := range gone {
		if !podspec.IsMirror(pod) {
			delete(s.api, pod.UID)
			u.Gone = append(u.Gone, pod)
		} else if m := s.mirrors[nameOf(pod)]; m != nil && m.UID == pod.UID {
			delete(s.mirrors, nameOf(pod))
			touched[nameOf(pod)] = true
		}
	}
	for _, pod := range b.set {
		if !podspec.IsMirror(pod) {
			pod = fromAPI(pod)
			s.api[pod.UID] = pod
			u.Set = append(u.Set, Desired{Pod: pod})
			continue
		}
		s.mirrors[nameOf(pod)] = pod
		touched[nameOf(pod)] = true
		if s.staticOf(pod) == nil && len(s.pending) == 0 {
			u.Strays = append(u.Strays, pod)
		}
	}
	for _, pod := range s.static {
		if touched[nameOf(pod)] {
			u.Set = append(u.Set, s.desired(pod))
		}
	}
}

// fromAPI takes from an API pod what would make it pass for a static one.
func fromAPI(pod *v1.Pod) *v1.Pod {
	if !podspec.IsStatic(pod) {
		return pod
	}
	copied := *pod
	copied.Annotations = maps.Clone(pod.Annotations)
	copied.Annotations[podspec.AnnotationSource] = "api"
	return &copied
}

// mergeStatic takes in the full list of one static source.
func (s *Source) mergeStatic(b batch, u *Update) {
	have := map[types.UID]bool{}
	var replaced []*v1.Pod
	for _, pod := range b.set {
		before := s.static[pod.UID]
		switch {
		case before != nil && s.owner[pod.UID] != b.source:
			continue // of two sources with one UID the first counts
		case before != nil && podspec.MirrorHash(before) != podspec.MirrorHash(pod): // with a UID of its own: it ends, and begins again under the same UID
			u.Gone = append(u.Gone, before)
			replaced = append(replaced, before)
		case before != nil:
			have[pod.UID] = true
			continue
		}
		have[pod.UID] = true
		s.static[pod.UID], s.owner[pod.UID] = pod, b.source
		u.Set = append(u.Set, s.desired(pod))
	}
	for uid, pod := range s.static {
		if s.owner[uid] != b.source || have[uid] {
			continue
		}
		delete(s.static, uid)
		delete(s.owner, uid)
		u.Gone = append(u.Gone, pod)
		replaced = append(replaced, pod)
	}
	for _, pod := range replaced {
		if m := s.mirrors[nameOf(pod)]; m != nil && len(s.pending) == 0 && s.staticOf(m) == nil {
			u.Strays = append(u.Strays, m)
		}
	}
}

// followAPI lists and watches this node's pods. What changes while a batch waits to be taken goes into the next one.
func (s *Source) followAPI(ctx context.Context, out chan<- batch) error {
	if s.cfg.Registered != nil {
		select {
		case <-s.cfg.Registered():
		case <-ctx.Done():
			return nil
		}
	}
	selector := fields.OneTermEqualSelector("spec.nodeName", s.cfg.NodeName).String()
	pods := s.cfg.Client.CoreV1().Pods(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return pods.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return pods.Watch(ctx, options)
		},
	}
	changed := newInbox()
	next := batch{source: "api"}
	set := func(pod *v1.Pod) {
		next.set = append(slices.DeleteFunc(next.set, func(p *v1.Pod) bool { return p.UID == pod.UID }), pod)
	}
	gone := func(pod *v1.Pod) {
		next.set = slices.DeleteFunc(next.set, func(p *v1.Pod) bool { return p.UID == pod.UID })
		next.gone = append(next.gone, pod)
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.Client),
		ObjectType:    &v1.Pod{},
		Transform:     stripManagedFields,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { changed.put(func() { set(o.(*v1.Pod)) }) },
			UpdateFunc: func(old, o any) {
				changed.put(func() {
					if old.(*v1.Pod).UID != o.(*v1.Pod).UID {
						gone(old.(*v1.Pod)) // deleted and made anew while the watch was interrupted
					}
					set(o.(*v1.Pod))
				})
			},
			DeleteFunc: func(o any) {
				if late, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = late.Obj
				}
				if pod, ok := o.(*v1.Pod); ok {
					changed.put(func() { gone(pod) })
				}
			},
		},
	})
	var informer crew
	defer informer.Wait()
	informer.do(ctx, func(ctx context.Context) error { controller.RunWithContext(ctx); return nil }, func(error) {})
	if !cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
		return fmt.Errorf("cannot list the pods of node %s: %w", s.cfg.NodeName, context.Cause(ctx))
	}
	changed.drain()
	next.full = true
	for {
		var to chan<- batch
		if next.full || len(next.set)+len(next.gone) > 0 {
			to = out
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed.wake:
			changed.drain()
		case to <- next:
			next = batch{source: "api"}
		}
	}
}

// stripManagedFields leaves out what nobody here reads and what takes the most memory.
func stripManagedFields(o any) (any, error) {
	if pod, ok := o.(*v1.Pod); ok {
		pod.ManagedFields = nil
	}
	return o, nil
}
