// Package inuse knows which attached volumes this node's pods use, so that the control plane does not detach them.
//
//	Add, Drop -> Volumes -> status.volumesInUse -> Reported -> Knows, Attached: a pod may mount it
package inuse

import (
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/winkube/winkube/pkg/wake"
)

// Key names a volume on this node.
type Key interface {
	comparable
	// Unique is the volume's name in status.volumesInUse and status.volumesAttached of the Node.
	Unique() v1.UniqueVolumeName
}

// Volumes are those of one kind that pods use, or are about to. The zero value is ready for use.
type Volumes[K Key] struct {
	Changed wake.Signal // sent when the Node's status has to be compared

	mu   sync.Mutex
	pods map[K]map[types.UID]struct{} // "": staged, and no pod is known to use it
	// reported has the version of our Node at which the API server first had a volume of pods as in use: older ones say what was before.
	reported map[K]string
	told     wake.Broadcast // reported changed
}

// Add says that pod uid uses the volume, or with "" that it is staged.
func (u *Volumes[K]) Add(k K, uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pods == nil {
		u.pods = map[K]map[types.UID]struct{}{}
	}
	if u.pods[k] == nil {
		u.pods[k] = map[types.UID]struct{}{}
		u.Changed.Send()
	}
	u.pods[k][uid] = struct{}{}
}

// Drop says that pod uid has done with the volume, or with "" that it is not staged any more.
func (u *Volumes[K]) Drop(k K, uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.pods[k], uid)
	if _, known := u.pods[k]; known && len(u.pods[k]) == 0 {
		delete(u.pods, k)
		delete(u.reported, k)
		u.Changed.Send()
	}
}

// Of lists what pod uid uses.
func (u *Volumes[K]) Of(uid types.UID) (of []K) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for k, pods := range u.pods {
		if _, uses := pods[uid]; uses {
			of = append(of, k)
		}
	}
	return of
}

// DropAll says that pod uid has done with all volumes.
func (u *Volumes[K]) DropAll(uid types.UID) {
	for _, k := range u.Of(uid) {
		u.Drop(k, uid)
	}
}

// Reported says that the API server has our Node in this state. It is called with newer ones only.
func (u *Volumes[K]) Reported(node *v1.Node) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for volume := range u.pods {
		listed := slices.Contains(node.Status.VolumesInUse, volume.Unique())
		if _, was := u.reported[volume]; was == listed {
			continue
		}
		if !listed {
			delete(u.reported, volume)
			continue
		}
		if u.reported == nil {
			u.reported = map[K]string{}
		}
		u.reported[volume] = node.ResourceVersion
		u.told.Send()
	}
}

// Knows says whether node shows the volume as in use, and is no older than the report of that; and has a channel that is closed at the next report.
func (u *Volumes[K]) Knows(node *v1.Node, k K) (bool, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := u.told.Next()
	since, reported := u.reported[k]
	if !reported || node == nil || !slices.Contains(node.Status.VolumesInUse, k.Unique()) {
		return false, next
	}
	order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, since)
	return err != nil || order >= 0, next
}

// Attached waits until the control plane has attached the volume to this node and knows that it is in use, so that it does not detach it again. state
// returns our Node as last seen and a channel that is closed at its next change. The error is that of ctx.
func (u *Volumes[K]) Attached(ctx context.Context, state func() (*v1.Node, <-chan struct{}), k K) (v1.AttachedVolume, error) {
	for {
		node, changed := state()
		listed, told := u.Knows(node, k)
		if !listed {
			u.Changed.Send()
		} else if i := slices.IndexFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == k.Unique() }); i >= 0 {
			return node.Status.VolumesAttached[i], nil
		}
		select {
		case <-changed:
		case <-told:
		case <-ctx.Done():
			return v1.AttachedVolume{}, context.Cause(ctx)
		}
	}
}

// Names are those for status.volumesInUse of the volumes that keep accepts, never nil.
func (u *Volumes[K]) Names(keep func(K) bool) []v1.UniqueVolumeName {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := []v1.UniqueVolumeName{}
	for volume := range u.pods {
		if keep(volume) {
			out = append(out, volume.Unique())
		}
	}
	slices.Sort(out)
	return out
}
