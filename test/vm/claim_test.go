package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claim makes a PersistentVolume for the machine and a claim that is bound to it, and returns a pod's volume "disk" with that.
func (d *days) claim(name string, mode v1.PersistentVolumeMode, source v1.PersistentVolumeSource) v1.Volume {
	d.Helper()
	meta, class := metav1.ObjectMeta{Name: "vm-" + name, Labels: map[string]string{"vm": "yes"}}, ""
	size, access := v1.ResourceList{v1.ResourceStorage: resource.MustParse("32Mi")}, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	here := v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{d.vm.Name}}
	pv := &v1.PersistentVolume{ObjectMeta: meta, Spec: v1.PersistentVolumeSpec{Capacity: size, AccessModes: access, VolumeMode: &mode, PersistentVolumeSource: source,
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{here}}}}}}}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: meta, Spec: v1.PersistentVolumeClaimSpec{AccessModes: access, VolumeMode: &mode, VolumeName: pv.Name, StorageClassName: &class, Resources: v1.VolumeResourceRequirements{Requests: size}}}
	core := d.client.CoreV1()
	if _, err := core.PersistentVolumes().Create(d.Context(), pv, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
	if _, err := core.PersistentVolumeClaims(space).Create(d.Context(), claim, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
	d.eventually(time.Minute, "claim "+name+" bound", func(ctx context.Context) error {
		found, err := core.PersistentVolumeClaims(space).Get(ctx, claim.Name, metav1.GetOptions{})
		if err == nil && found.Status.Phase != v1.ClaimBound {
			err = fmt.Errorf("it is %s", found.Status.Phase)
		}
		return err
	})
	return claimed(name)
}

// claimed is a pod's volume "disk" with a claim of this name.
func claimed(name string) v1.Volume {
	return v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "vm-" + name}}}
}

// unclaim deletes what claim has made.
func (d *days) unclaim(names ...string) {
	d.Helper()
	core := d.client.CoreV1()
	for _, name := range names {
		for _, err := range []error{core.PersistentVolumeClaims(space).Delete(d.Context(), "vm-"+name, metav1.DeleteOptions{}), core.PersistentVolumes().Delete(d.Context(), "vm-"+name, metav1.DeleteOptions{})} {
			if err != nil && !apierrors.IsNotFound(err) {
				d.Error(err)
			}
		}
		d.eventually(time.Minute, "volume "+name+" gone", func(ctx context.Context) error {
			if _, err := core.PersistentVolumes().Get(ctx, "vm-"+name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(errors.New("still there"), err)
			}
			return nil
		})
	}
}

// guide returns the block of the guide that follows a text.
func (d *days) guide(text string) string {
	d.Helper()
	const name = "docs/guides/storage.md"
	page, err := os.ReadFile(filepath.Join(d.cluster.Root, name))
	d.must(err)
	_, rest, found := strings.Cut(string(page), text)
	_, block, opened := strings.Cut(rest, "\n```")
	_, block, _ = strings.Cut(block, "\n")
	block, _, closed := strings.Cut(block, "```\n")
	if !found || !opened || !closed {
		d.Fatalf("%s has no block after %q: fix how this test reads it", name, text)
	}
	return block
}
