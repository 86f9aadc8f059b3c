package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Reported takes the state of our Node in the API server. Each call must have a newer state.
func (k *Kind) Reported(node *v1.Node) { k.inUse.Reported(node) }

// InUse returns the names for status.volumesInUse, never nil. It omits volumes that need no attaching as soon as their CSIDriver object is known.
func (k *Kind) InUse() []v1.UniqueVolumeName {
	return k.inUse.Names(func(volume key) bool { return attachRequired(k.parts.Objects.KnownCSIDriver(volume.driver)) })
}

const (
	attachTime = 2 * time.Minute
	// attachLook is the interval at which the VolumeAttachment is read for an error of the attacher: a node may not watch it.
	attachLook = 10 * time.Second
)

// attached waits until the control plane has attached the volume to this node and knows that it is in use, so that it does not detach it again.
// It returns what NodeStage and NodePublish get from the attacher.
//
// The Node authorizer lets a node get its VolumeAttachments by name, but not list or watch them. Our Node, which is watched, shows that a volume
// is attached.
func (k *Kind) attached(ctx context.Context, uid types.UID, d described) (map[string]string, error) {
	k.inUse.Add(d.key, uid)
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	look := time.NewTicker(attachLook)
	defer look.Stop()
	var last error
	for {
		node, changed := k.parts.Objects.NodeState()
		listed, told := k.inUse.Knows(node, d.key)
		if !listed {
			k.inUse.Changed.Send()
		}
		on := listed && slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == d.Unique() })
		object, err := k.parts.Objects.VolumeAttachment(ctx, d.attachment(k.parts.NodeName))
		switch {
		case ctx.Err() != nil:
		case apierrors.IsNotFound(err) || apierrors.IsForbidden(err): // the authorizer learns of it a moment later
			last = fmt.Errorf("volume %v has GET error for volume attachment %v: %w", d.handle, d.attachment(k.parts.NodeName), err)
		case err != nil:
			return nil, fmt.Errorf("volume %v has GET error for volume attachment %v: %w", d.handle, d.attachment(k.parts.NodeName), err)
		default:
			done, err := isAttached(object)
			if err != nil {
				if exhausted(object, k.parts.Objects.KnownCSIDriver(d.driver)) {
					refreshSoon(k, d.driver)
				}
				return nil, err
			}
			if done && on {
				return object.Status.AttachmentMetadata, nil
			}
			last = fmt.Errorf("volume %v is not attached for volume attachment %v", d.handle, object.Name)
			if done {
				last = fmt.Errorf("volume not attached according to node status for volume %q", d.spec)
			}
		}
		select {
		case <-changed:
		case <-told:
		case <-look.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, errors.Join(fmt.Errorf("timed out waiting for external-attacher of %s CSI driver to attach volume %s", d.driver, d.handle), last)
			}
			return nil, context.Cause(ctx)
		}
	}
}

// isAttached reports whether the attacher has done its part. If it cannot, the error has upstream's words. It is pure.
func isAttached(object *storagev1.VolumeAttachment) (bool, error) {
	switch {
	case object.DeletionTimestamp != nil:
		return false, errors.New("volume attachment is being deleted")
	case object.Status.Attached:
		return true, nil
	case object.Status.AttachError != nil:
		return false, errors.New(object.Status.AttachError.Message)
	}
	return false, nil
}

// exhausted reports whether the attacher says that this node can have no more volumes of the driver, and the driver wants to be asked in that case
// (nodeAllocatableUpdatePeriodSeconds). It is pure.
func exhausted(object *storagev1.VolumeAttachment, driver *storagev1.CSIDriver) bool {
	failed := object.Status.AttachError
	return failed != nil && failed.ErrorCode != nil && codes.Code(*failed.ErrorCode) == codes.ResourceExhausted && //nolint:gosec // a gRPC code
		driver != nil && driver.Spec.NodeAllocatableUpdatePeriodSeconds != nil
}

// refreshSoon has the driver asked how many volumes this node can have, so that the scheduler sends no more pods here. The pod does not wait for that.
func refreshSoon(k *Kind, driver string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full[driver] {
		return
	}
	k.full[driver] = true
	k.crew.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), callTime)
		defer cancel()
		if err := k.parts.Refresh(ctx, driver); err != nil {
			klog.ErrorS(err, "Cannot ask a CSI driver how many volumes this node can have", "driver", driver)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.full, driver)
	})
}
