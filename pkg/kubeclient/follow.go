package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/clientset"
)

// grace is how long a refusal may be due to a delay in the API server: its authorizer and admission learn from their own watch that a pod
// is bound to this node, and that watch may be behind ours.
const grace = 2 * time.Second

// Pauses between attempts: soon while a refusal may be due to such a delay, otherwise listing.
const soon = 25 * time.Millisecond

var listing = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: 30 * time.Second}

// object is a *v1.Secret or a *v1.ConfigMap.
type object interface {
	metav1.Object
	runtime.Object
}

// item is one Secret or ConfigMap that a registered pod refers to. Objects.mu guards the fields that change.
type item struct {
	key
	users map[types.UID]struct{}
	ended context.Context // context of the watch
	stop  context.CancelFunc
	known chan struct{} // closed when object or err is first set

	object object // nil: see err
	err    error
	last   error // from the last attempt to reach the API server, for messages
	missed bool  // a reader got an error instead of the object
}

// follow keeps it up to date with a watch of this single object, until ctx ends or the object can no longer change.
func (o *Objects) follow(ctx context.Context, it *item) {
	started, delay := o.clock.Now(), listing
	for ctx.Err() == nil {
		obj, version, err := list(ctx, o.client, it.key)
		if err != nil {
			young := apierrors.IsForbidden(err) && o.clock.Since(started) < grace
			o.failed(it, err, young)
			if young {
				o.pause(ctx, soon)
			} else {
				o.pause(ctx, delay.Step())
			}
			continue
		}
		delay = listing
		if o.publish(it, obj) {
			return
		}
		for err == nil && ctx.Err() == nil {
			begun := o.clock.Now()
			version, err = o.watch(ctx, it, version)
			if err == nil && o.clock.Since(begun) < time.Second {
				o.pause(ctx, listing.Duration) // avoid a busy loop with a server that ends watches immediately
			}
		}
		if errors.Is(err, errSettled) {
			return
		}
		if ctx.Err() == nil {
			klog.V(4).InfoS("Watch ended; listing again", "resource", it.kind, "object", klog.KRef(it.namespace, it.name), "reason", err)
			o.pause(ctx, soon)
		}
	}
}

// errSettled ends a watch whose object has become immutable.
var errSettled = errors.New("immutable")

// watch follows one watch from version until it ends. It returns the version to continue from. An error means that the object must be
// listed again.
func (o *Objects) watch(ctx context.Context, it *item, version string) (string, error) {
	options := only(it.name)
	options.ResourceVersion, options.AllowWatchBookmarks = version, true
	var w watch.Interface
	var err error
	if it.kind == secrets {
		w, err = o.client.Secrets(it.namespace).Watch(ctx, options)
	} else {
		w, err = o.client.ConfigMaps(it.namespace).Watch(ctx, options)
	}
	if err != nil {
		return version, err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return version, nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return version, nil
			}
			if event.Type == watch.Error {
				return version, apierrors.FromObject(event.Object)
			}
			obj, ok := event.Object.(object)
			if !ok {
				return version, fmt.Errorf("a watch of %s delivered a %T", it.kind, event.Object)
			}
			version = obj.GetResourceVersion()
			switch {
			case event.Type == watch.Bookmark || obj.GetName() != it.name:
			case event.Type == watch.Deleted:
				o.publish(it, nil)
			default:
				if o.publish(it, obj) {
					return version, errSettled
				}
			}
		}
	}
}

// pause waits for d plus or minus 20 %, so that many watches do not return together, or until ctx ends.
func (o *Objects) pause(ctx context.Context, d time.Duration) {
	d += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(d))
	select {
	case <-ctx.Done():
	case <-o.clock.After(d):
	}
}

// publish sets a new state of it (nil: it does not exist), notifies the pods that use it, and reports whether this state is final.
func (o *Objects) publish(it *item, obj object) (settled bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first, before := o.isFirst(it), it.object
	it.last = nil
	if obj == nil {
		it.object, it.err = nil, notFound(it.key)
	} else {
		obj.SetManagedFields(nil)
		it.object, it.err = obj, nil
	}
	same := before == nil && obj == nil ||
		before != nil && obj != nil && before.GetResourceVersion() == obj.GetResourceVersion() && obj.GetResourceVersion() != ""
	switch {
	case first:
		close(it.known)
		if !it.missed || obj == nil {
			break
		}
		fallthrough
	case !same || it.missed && obj != nil:
		for uid := range it.users {
			o.changed.queue.Add(uid)
		}
	}
	it.missed = it.missed && obj == nil
	return obj != nil && immutable(obj)
}

// failed records why the state of it is unknown. A permanent refusal becomes its state, unless an earlier object is known.
func (o *Objects) failed(it *item, err error, young bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	it.last = err
	if !apierrors.IsForbidden(err) || young || it.object != nil {
		return
	}
	first := o.isFirst(it)
	it.err = err
	if first {
		close(it.known)
	}
}

func (o *Objects) isFirst(it *item) bool {
	select {
	case <-it.known:
		return false
	default:
		return true
	}
}

func immutable(obj object) bool {
	switch obj := obj.(type) {
	case *v1.Secret:
		return obj.Immutable != nil && *obj.Immutable
	case *v1.ConfigMap:
		return obj.Immutable != nil && *obj.Immutable
	}
	return false
}

func notFound(k key) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: string(k.kind)}, k.name)
}

// only selects one object by name. List and watch are then authorized like reads of that object.
func only(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
}

// list reads the object of k through a list, because a watch can continue from its version even if the object (nil) does not exist.
func list(ctx context.Context, client clientset.Interface, k key) (object, string, error) {
	if k.kind == secrets {
		l, err := client.Secrets(k.namespace).List(ctx, only(k.name))
		if err != nil {
			return nil, "", err
		}
		for i := range l.Items {
			if l.Items[i].Name == k.name {
				return &l.Items[i], l.ResourceVersion, nil
			}
		}
		return nil, l.ResourceVersion, nil
	}
	l, err := client.ConfigMaps(k.namespace).List(ctx, only(k.name))
	if err != nil {
		return nil, "", err
	}
	for i := range l.Items {
		if l.Items[i].Name == k.name {
			return &l.Items[i], l.ResourceVersion, nil
		}
	}
	return nil, l.ResourceVersion, nil
}
