package csi_test

import (
	"maps"
	"strings"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	csivolume "github.com/winkube/winkube/pkg/volume/csi"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// TestInTreeInlineFields: all fields of an inline volume of a migrated kind reach the driver, the volume is measured, and the spec does not change.
func TestInTreeInlineFields(t *testing.T) {
	caching, kind := v1.AzureDataDiskCachingReadOnly, v1.AzureManagedDisk
	for _, test := range []struct {
		driver, handle, fsType string
		source                 v1.VolumeSource
		readOnly               bool
		attributes             map[string]string
	}{
		{"ebs.csi.aws.com", "vol-1", "xfs", v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-1", FSType: "xfs", Partition: 2, ReadOnly: true}}, true, map[string]string{"partition": "2"}},
		{"pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "xfs", v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "d", FSType: "xfs", Partition: 3, ReadOnly: true}}, true, map[string]string{"partition": "3"}},
		{"disk.csi.azure.com", "/subscriptions/s/d", "xfs", v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/subscriptions/s/d", CachingMode: &caching, FSType: new("xfs"), ReadOnly: new(true), Kind: &kind}}, true, map[string]string{"kind": "Managed", "cachingmode": "ReadOnly", "fstype": "xfs"}},
		{"disk.csi.azure.com", "/subscriptions/s/d", "", v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DataDiskURI: "/subscriptions/s/d"}}, false, map[string]string{"kind": "Managed"}},
		{"file.csi.azure.com", "#account#share#v#shop", "", v1.VolumeSource{AzureFile: &v1.AzureFileVolumeSource{SecretName: "azure-storage-account-account-secret", ShareName: "share", ReadOnly: true}}, true, map[string]string{"sharename": "share"}},
		{"cinder.csi.openstack.org", "c", "xfs", v1.VolumeSource{Cinder: &v1.CinderVolumeSource{VolumeID: "c", FSType: "xfs", ReadOnly: true, SecretRef: &v1.LocalObjectReference{Name: "s"}}}, true, nil},
		{"csi.vsphere.vmware.com", "[ds] v.vmdk", "xfs", v1.VolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] v.vmdk", FSType: "xfs", StoragePolicyName: "gold", StoragePolicyID: "id"}}, false, map[string]string{"storagepolicyname": "gold"}},
		{"csi.vsphere.vmware.com", "[ds] v.vmdk", "", v1.VolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] v.vmdk"}}, false, nil},
		{"pxd.portworx.com", "p", "xfs", v1.VolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "p", FSType: "xfs"}}, false, nil},
	} {
		t.Run(test.driver, func(t *testing.T) {
			r := newRig(t)
			r.rename(test.driver)
			r.API.Secrets["azure-storage-account-account-secret"] = map[string][]byte{"azurestorageaccountkey": []byte("x")}
			p := volumetest.Pod(volumetest.Vol("v", test.source))
			before := p.DeepCopy()
			r.MustPrepare(p)
			got := r.published()
			if got.VolumeId != test.handle || got.Readonly != test.readOnly || !maps.Equal(got.VolumeContext, test.attributes) || got.VolumeCapability.GetMount().GetFsType() != test.fsType {
				t.Errorf("%v", got)
			}
			if secrets := r.driver.Calls("NodeStageVolume")[0].Request.(*pb.NodeStageVolumeRequest).Secrets; (len(secrets) > 0) != (test.driver == "file.csi.azure.com") {
				t.Errorf("secrets %v", secrets)
			}
			r.driver.SetUsage(test.handle, nil, bytesUsage(100, 1, 99))
			if d, _, err := r.measure(p); err != nil || d.Capacity != 100 {
				t.Errorf("%+v, %v", d, err)
			}
			if !equality.Semantic.DeepEqual(p, before) {
				t.Errorf("the spec was changed: %+v", p.Spec.Volumes)
			}
			r.mustClean("uid-1")
			r.nothingLeft()
		})
	}
}

// TestTranslationPanics: a panic in the library becomes an error of that volume.
func TestTranslationPanics(t *testing.T) {
	err := csivolume.TranslateWith(func() (*v1.PersistentVolume, error) {
		var none *v1.PersistentVolume
		none.Name = "x"
		return none, nil
	})
	if err == nil || !strings.Contains(err.Error(), "failed to translate in-tree pv to CSI: internal error: ") {
		t.Errorf("%v", err)
	}
}

// TestOneVolumeByTwoNames: a pod has a disk inline and by a claim. The disk is in use until both are unpublished, then unstaged; each of several pods
// counts.
func TestOneVolumeByTwoNames(t *testing.T) {
	r := newRig(t)
	r.rename("ebs.csi.aws.com")
	disk := &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}
	r.Bind("data", v1.PersistentVolumeSource{AWSElasticBlockStore: disk})
	p := volumetest.Pod(volumetest.ClaimVol(false), volumetest.Vol("in", v1.VolumeSource{AWSElasticBlockStore: disk}))
	q := p.DeepCopy()
	q.UID = "uid-2"
	r.MustPrepare(p)
	r.MustPrepare(q)
	r.restart()
	r.MustPrepare(p)
	r.mustClean("uid-1")
	r.driver.Fail("NodeUnpublishVolume", status.Error(codes.Internal, "busy"))
	if err := r.Clean(t.Context(), "uid-2"); err == nil {
		t.Error("cleaned up although one of its volumes is published")
	}
	r.want("Stage Publish Publish Publish Publish Unpublish Unpublish Unpublish Unpublish")
	r.mustClean("uid-2")
	r.want("Stage Publish Publish Publish Publish Unpublish Unpublish Unpublish Unpublish Unpublish Unstage")
	r.nothingLeft()
}
