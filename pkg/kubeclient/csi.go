package kubeclient

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/wake"
)

// CSIObjects reads the API objects for volumes of CSI drivers, within the Node authorizer's limits. The results are shared and read-only.
type CSIObjects struct {
	*Objects
	drivers cache.SharedIndexInformer
	asked   chan struct{} // closed at the first request for a CSIDriver: a node without CSI volumes does not watch them
	ask     func()
	wait    time.Duration // for the first list of CSIDrivers

	node wake.Broadcast // our Node changed

	mu     sync.Mutex
	failed error // why the last list of CSIDrivers failed
}

// listTime limits how long a request for a CSIDriver waits for the first list. A pod that gets an error retries.
const listTime = 30 * time.Second

// NewCSIObjects returns a CSIObjects that uses objects, before objects' Run is called.
func NewCSIObjects(objects *Objects) (*CSIObjects, error) {
	drivers := cache.NewSharedIndexInformer(clientset.ListerWatcher(objects.client, objects.client.CSIDrivers(), nil), &storagev1.CSIDriver{}, 0, cache.Indexers{})
	c := &CSIObjects{Objects: objects, drivers: drivers, asked: make(chan struct{}), wait: listTime}
	c.ask = sync.OnceFunc(func() { close(c.asked) })
	_ = c.drivers.SetTransform(withoutManagedFields) // only a started informer refuses a transform or a handler
	_ = c.drivers.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		c.mu.Lock()
		c.failed = err
		c.mu.Unlock()
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	return c, objects.OnNode(func(*v1.Node) { c.node.Send() })
}

// Run watches CSIDrivers from the first request until ctx ends.
func (c *CSIObjects) Run(ctx context.Context) error {
	select {
	case <-c.asked:
		c.drivers.RunWithContext(ctx)
	case <-ctx.Done():
	}
	return nil
}

// CSIDriver returns the named object; nil if there is none. It waits for the first list until ctx ends, at most listTime.
func (c *CSIObjects) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	c.ask()
	ctx, cancel := context.WithTimeoutCause(ctx, c.wait, fmt.Errorf("gave up after %s", c.wait))
	defer cancel()
	if cache.WaitFor(ctx, "", c.drivers.HasSyncedChecker()) {
		return c.KnownCSIDriver(name), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case apierrors.IsForbidden(c.failed):
		return nil, fmt.Errorf("the kubelet may not list and watch csidrivers.storage.k8s.io, which the ClusterRole system:node allows: %w", c.failed)
	case c.failed != nil:
		return nil, fmt.Errorf("the API server has not listed CSIDrivers yet: %w", c.failed)
	}
	return nil, fmt.Errorf("the API server has not listed CSIDrivers yet, it does not answer: %w", context.Cause(ctx))
}

// KnownCSIDriver returns the named object without waiting; nil if there is none or nothing is known.
func (c *CSIObjects) KnownCSIDriver(name string) *storagev1.CSIDriver {
	c.ask()
	obj, ok, err := c.drivers.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	return obj.(*storagev1.CSIDriver)
}

// OnCSIDrivers registers f, which must not block, for changes of CSIDrivers. It does not start the watch.
func (c *CSIObjects) OnCSIDrivers(f func()) error {
	_, err := c.drivers.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { f() }, UpdateFunc: func(any, any) { f() }, DeleteFunc: func(any) { f() },
	})
	return err
}

// VolumeAttachment reads one of this node's VolumeAttachments by name, because a node may not list them.
func (c *CSIObjects) VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return c.client.VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
}

// PatchClaimStatus applies a JSON merge patch to the status of a claim, and returns the claim after it. NodeRestriction allows nodes to change its
// capacity, its conditions and the state of an expansion.
func (c *CSIObjects) PatchClaimStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.PersistentVolumeClaim, error) {
	return c.client.PersistentVolumeClaims(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
}

// Secret reads a Secret, even one that a PersistentVolume names: the Node authorizer may permit that a moment after the pod is bound.
func (c *CSIObjects) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	secret, err := patient(ctx, c.Objects, func() (*v1.Secret, error) { return c.Objects.Secret(ctx, namespace, name) })
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("failed to find the secret %s in the namespace %s with error: %w", name, namespace, err)
	}
	return secret, err
}

// NodeState returns our Node as last seen (nil before that), and a channel that is closed when it changes.
func (c *CSIObjects) NodeState() (*v1.Node, <-chan struct{}) {
	next := c.node.Next() // first, so that a change in between closes it
	return c.Node(), next
}
