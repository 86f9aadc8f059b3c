// Package source merges this node's desired pods from the API server, files and a URL into one stream.
//
//	API server, directory of manifests, URL --> Source --> pod.Update --> worker.Manager
//
// Static pods get their identity, defaults and checks here. This package starts no pods.
package source

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Config is where this node's pods come from. Each of the three sources is optional.
type Config struct {
	NodeName string
	// Client is the API server; nil: none. Its pods are followed after the channel from Registered is closed (nil: immediately), because
	// the Node's labels and allocatable resources decide what may run. Static pods do not wait: the API server may be one of them.
	Client     clientset.Interface
	Registered func() <-chan struct{}
	// Path is a directory of manifests, or one manifest (kubelet field staticPodPath); "": none.
	Path string
	// PathPeriod is the interval for reading Path without an event (fileCheckFrequency); 0: 20 s.
	PathPeriod time.Duration
	// URL serves a pod or a list of pods (staticPodURL); "": none. Each request has the headers URLHeader (staticPodURLHeader).
	URL       string
	URLHeader map[string][]string
	// URLPeriod is the interval for polling URL (httpCheckFrequency); 0: 20 s.
	URLPeriod time.Duration
	Clock     clock.WithTicker // nil: the real one
}

// Source merges the pods of all sources into one stream. Only Source matches mirror pods to static pods: everywhere else a static pod has
// its own UID and comes with its mirror pod.
type Source struct {
	cfg Config

	// Only Run's goroutine uses the fields below.
	static  map[types.UID]*v1.Pod
	owner   map[types.UID]string // source of a static pod
	mirrors map[types.NamespacedName]*v1.Pod
	api     map[types.UID]*v1.Pod
	pending map[string]bool // sources that have not delivered their first list
}

const sourcePeriod = 20 * time.Second

// New returns a Source.
func New(cfg Config) *Source {
	cfg.PathPeriod, cfg.URLPeriod = cmp.Or(cfg.PathPeriod, sourcePeriod), cmp.Or(cfg.URLPeriod, sourcePeriod)
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	return &Source{
		cfg: cfg, static: map[types.UID]*v1.Pod{}, owner: map[types.UID]string{}, mirrors: map[types.NamespacedName]*v1.Pod{},
		api: map[types.UID]*v1.Pod{}, pending: map[string]bool{},
	}
}

// batch is news from one source: its complete list (full) or its changes.
type batch struct {
	source string // "api", "file" or "http"
	full   bool
	set    []*v1.Pod
	gone   []*v1.Pod
}

// Run delivers Updates until ctx ends. While a source is unreadable, it delivers nothing and its earlier pods stay.
func (s *Source) Run(ctx context.Context, out chan<- pod.Update) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	batches := make(chan batch)
	follow := func(name string, f func(context.Context, chan<- batch) error) {
		s.pending[name] = true
		running.Go(func() {
			err := pod.Guarded(func() error { return f(ctx, batches) })
			if caught := new(pod.PanicError); errors.As(err, &caught) {
				klog.ErrorS(err, "Recovered from a panic", "source", name, "stack", string(caught.Stack))
			}
			if err != nil && ctx.Err() == nil {
				klog.ErrorS(err, "Stopped reading a source of pods; its pods keep running", "source", name)
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

// merge applies a batch and returns what changed.
func (s *Source) merge(b batch) pod.Update {
	var u pod.Update
	waited := len(s.pending) > 0
	if b.source == "api" {
		s.mergeAPI(b, &u)
	} else {
		s.mergeStatic(b, &u)
	}
	delete(s.pending, b.source)
	u.Synced = len(s.pending) == 0
	if waited && u.Synced { // only now are the mirror pods without a static pod known
		for _, m := range s.mirrors {
			if s.staticOf(m) == nil {
				u.Strays = append(u.Strays, m)
			}
		}
	}
	slices.SortFunc(u.Set, func(a, b pod.Desired) int { return cmp.Compare(a.Pod.UID, b.Pod.UID) })
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

// desired is a static pod with its mirror pod. The API server counts generations, so the pod gets its mirror's.
func (s *Source) desired(p *v1.Pod) pod.Desired {
	d := pod.Desired{Pod: p, Mirror: s.mirrors[nameOf(p)]}
	if d.Mirror != nil {
		copied := *p
		copied.Generation = d.Mirror.Generation
		d.Pod = &copied
	}
	return d
}

func (s *Source) mergeAPI(b batch, u *pod.Update) {
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
	for _, p := range b.set {
		if !podspec.IsMirror(p) {
			p = fromAPI(p)
			s.api[p.UID] = p
			u.Set = append(u.Set, pod.Desired{Pod: p})
			continue
		}
		s.mirrors[nameOf(p)] = p
		touched[nameOf(p)] = true
		if s.staticOf(p) == nil && len(s.pending) == 0 {
			u.Strays = append(u.Strays, p)
		}
	}
	for _, pod := range s.static {
		if touched[nameOf(pod)] {
			u.Set = append(u.Set, s.desired(pod))
		}
	}
}

// fromAPI changes the annotation that would make an API pod look like a static pod.
func fromAPI(pod *v1.Pod) *v1.Pod {
	if !podspec.IsStatic(pod) {
		return pod
	}
	copied := *pod
	copied.Annotations = maps.Clone(pod.Annotations)
	copied.Annotations[podspec.AnnotationSource] = "api"
	return &copied
}

// mergeStatic applies the full list of one static source.
func (s *Source) mergeStatic(b batch, u *pod.Update) {
	have := map[types.UID]bool{}
	var replaced []*v1.Pod
	for _, pod := range b.set {
		before := s.static[pod.UID]
		switch {
		case before != nil && s.owner[pod.UID] != b.source:
			continue // if two sources define one UID, the first wins
		case before != nil && podspec.MirrorHash(before) != podspec.MirrorHash(pod): // the manifest sets the UID: the old pod ends, and the new one starts under the same UID
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
