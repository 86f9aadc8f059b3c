package csi

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// inTree knows the kinds of volume that upstream's kubelet has left to CSI drivers, such as awsElasticBlockStore.
var inTree = translation.New()

// vspherePolicy is the attribute of a storage policy that the CSI driver of vSphere knows.
const vspherePolicy = "storagepolicyname"

// sourceOf returns a PersistentVolume with the CSI source of v, and whether it was translated from an in-tree kind; nil: v is an inline volume of
// kind csi. It is pure.
func sourceOf(v volume.Volume) (pv *v1.PersistentVolume, migrated bool, err error) {
	if v.PV != nil {
		return translated(v.PV)
	}
	if !inTree.IsInlineMigratable(v.Spec) {
		return nil, false, nil
	}
	spec, policy := v.Spec, ""
	if disk := spec.VsphereVolume; disk != nil && disk.StoragePolicyName != "" {
		// The library (0.36) reads the name from a field that it has not set, and panics.
		spec, policy = spec.DeepCopy(), disk.StoragePolicyName
		spec.VsphereVolume.StoragePolicyName = ""
	}
	pv, _, err = translate(func() (*v1.PersistentVolume, error) {
		return inTree.TranslateInTreeInlineVolumeToCSI(klog.Background(), spec, v.Pod.Namespace)
	})
	if err != nil {
		return nil, true, err
	}
	if policy != "" {
		pv.Spec.CSI.VolumeAttributes = merged(pv.Spec.CSI.VolumeAttributes, map[string]string{vspherePolicy: policy})
	}
	// The pod's author chooses parts of the name, which becomes a directory: slashes are replaced as in upstream.
	pv.Name = strings.ReplaceAll(pv.Name, "/", "~")
	if err := paths.CheckElement(pod.Platform{}, pv.Name); err != nil {
		return nil, true, fmt.Errorf("failed to translate in-tree pv to CSI: %w", err)
	}
	return pv, true, nil
}

// translated returns pv with a CSI source.
func translated(pv *v1.PersistentVolume) (*v1.PersistentVolume, bool, error) {
	if pv.Spec.CSI != nil {
		return pv, false, nil
	}
	return translate(func() (*v1.PersistentVolume, error) { return inTree.TranslateInTreePVToCSI(klog.Background(), pv) })
}

// translate calls the library. Its input comes from pods' specs, and a panic must not end the agent: measurements have no worker that recovers.
func translate(library func() (*v1.PersistentVolume, error)) (pv *v1.PersistentVolume, migrated bool, err error) {
	err = pod.Guarded(func() (err error) {
		pv, err = library()
		return err
	})
	switch {
	case err != nil:
		return nil, true, fmt.Errorf("failed to translate in-tree pv to CSI: %w", err)
	case pv.Spec.CSI == nil:
		return nil, true, fmt.Errorf("failed to translate in-tree pv to CSI: %s has no CSI source", pv.Name)
	}
	return pv, true, nil
}
