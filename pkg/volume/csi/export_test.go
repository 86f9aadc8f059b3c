package csi

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TranslateWith translates a volume of an in-tree kind with another library.
func TranslateWith(library func() (*v1.PersistentVolume, error)) error {
	_, _, err := translate(library)
	return err
}

// Wait waits until no volume is being expanded.
func (k *Kind) Wait() {
	k.growth.Wait()
	k.crew.Wait()
}

// Orphans looks once for volumes that no pod uses.
func (k *Kind) Orphans(ctx context.Context) error { return k.orphans(ctx) }

// allOf returns the steps of takeDown.
func allOf(s seen) []step {
	ofPod, ofNode, end := takeDown(s)
	return slices.Concat(ofPod, ofNode, end)
}

// EndUntil does what Clean does for the pod's only volume, is killed after n steps, and says whether that was before the last one.
func (k *Kind) EndUntil(ctx context.Context, uid types.UID, n int) (bool, error) {
	users, err := k.tree.usersOf(uid)
	if err != nil {
		return false, err
	}
	w, before, err := k.ending(ctx, users[0])
	if err != nil {
		return false, err
	}
	defer w.held.Release()
	steps := allOf(before)
	return n < len(steps), w.all(ctx, steps[:n])
}
