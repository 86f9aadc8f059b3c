package csi_test

import (
	"context"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/csi/csitest"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// migrations counts the calls of a driver that are for migrated volumes, and those that are not.
type migrations struct {
	csi.Driver
	pb.NodeClient

	mu      sync.Mutex
	of, not int
}

func (m *migrations) Node() pb.NodeClient { return m }

func (m *migrations) count(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if csi.IsMigrated(ctx) {
		m.of++
	} else {
		m.not++
	}
}

func (m *migrations) NodeStageVolume(ctx context.Context, in *pb.NodeStageVolumeRequest, o ...grpc.CallOption) (*pb.NodeStageVolumeResponse, error) {
	m.count(ctx)
	return m.NodeClient.NodeStageVolume(ctx, in, o...)
}

func (m *migrations) NodePublishVolume(ctx context.Context, in *pb.NodePublishVolumeRequest, o ...grpc.CallOption) (*pb.NodePublishVolumeResponse, error) {
	m.count(ctx)
	return m.NodeClient.NodePublishVolume(ctx, in, o...)
}

func (m *migrations) NodeGetVolumeStats(ctx context.Context, in *pb.NodeGetVolumeStatsRequest, o ...grpc.CallOption) (*pb.NodeGetVolumeStatsResponse, error) {
	m.count(ctx)
	return m.NodeClient.NodeGetVolumeStats(ctx, in, o...)
}

func (m *migrations) NodeExpandVolume(ctx context.Context, in *pb.NodeExpandVolumeRequest, o ...grpc.CallOption) (*pb.NodeExpandVolumeResponse, error) {
	m.count(ctx)
	return m.NodeClient.NodeExpandVolume(ctx, in, o...)
}

// rename gives the rig's driver another name.
func (r *rig) rename(name string) *migrations {
	r.driver = csitest.New(r.t, name)
	r.driver.SetCapabilities(stages, hasStats, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	r.driver.OnMount(func(_, path string) {
		if on, _ := r.Kernel.IsMount(path); !on {
			r.Kernel.Points = append(r.Kernel.Points, path)
		}
	}, func(_, path string) { _ = r.Kernel.Unmount(path) })
	m := &migrations{Driver: r.driver, NodeClient: r.driver.Node()}
	r.drivers[name] = m
	r.api.change(func() {
		r.api.drivers[name] = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}}
	})
	return m
}

// TestInTreePersistentVolumes: a PersistentVolume of a kind that upstream has migrated goes to its CSI driver, and calls count as such.
func TestInTreePersistentVolumes(t *testing.T) {
	for _, test := range []struct {
		driver, handle string
		source         v1.PersistentVolumeSource
		attributes     map[string]string
	}{
		{"ebs.csi.aws.com", "vol-1", v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-1", Partition: 2}}, map[string]string{"partition": "2"}},
		{"pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "d"}}, map[string]string{"partition": ""}},
		{"disk.csi.azure.com", "/subscriptions/s/d", v1.PersistentVolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/subscriptions/s/d"}}, map[string]string{"kind": "Managed"}},
		{"file.csi.azure.com", "#account#share#pv#shop", v1.PersistentVolumeSource{AzureFile: &v1.AzureFilePersistentVolumeSource{ShareName: "share", SecretName: "azure-storage-account-account-secret", SecretNamespace: new("shop")}}, map[string]string{"sharename": "share"}},
		{"cinder.csi.openstack.org", "c", v1.PersistentVolumeSource{Cinder: &v1.CinderPersistentVolumeSource{VolumeID: "c"}}, map[string]string{}},
		{"csi.vsphere.vmware.com", "[ds] v.vmdk", v1.PersistentVolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] v.vmdk"}}, nil},
		{"pxd.portworx.com", "p", v1.PersistentVolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "p"}}, map[string]string{}},
	} {
		t.Run(test.driver, func(t *testing.T) {
			r := newRig(t)
			m := r.rename(test.driver)
			r.API.Secrets["azure-storage-account-account-secret"] = map[string][]byte{"azurestorageaccountkey": []byte("x")}
			_, pv := r.Bind("data", test.source)
			pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
			p := volumetest.Pod(volumetest.ClaimVol(false))
			path := r.MustPrepare(p)["v"]
			if want := r.path("pods/uid-1/volumes/kubernetes.io~csi/pv/mount"); path != want {
				t.Errorf("at %s, want %s", path, want)
			}
			got := r.published()
			if got.VolumeId != test.handle || test.attributes != nil && !maps.Equal(got.VolumeContext, test.attributes) {
				t.Errorf("published %s with %v, want %s with %v", got.VolumeId, got.VolumeContext, test.handle, test.attributes)
			}
			if secrets := r.driver.Calls("NodeStageVolume")[0].Request.(*pb.NodeStageVolumeRequest).Secrets; (len(secrets) > 0) != (test.driver == "file.csi.azure.com") {
				t.Errorf("secrets %v", secrets)
			}
			r.driver.SetUsage(test.handle, nil, bytesUsage(100, 1, 99))
			if d, _, err := r.measure(p); err != nil || d.Capacity != 100 {
				t.Errorf("%+v, %v", d, err)
			}
			if m.of != 3 || m.not != 0 {
				t.Errorf("%d calls are counted as migrated, %d not; want 3 and 0", m.of, m.not)
			}
			if pv.Spec.CSI != nil {
				t.Error("the PersistentVolume was changed")
			}
			r.restart()
			r.mustClean("uid-1")
			r.want("Stage Publish GetVolumeStats Unpublish Unstage")
			r.nothingLeft()
		})
	}
}

// TestInTreeGrows: the claim of a migrated volume is expanded by the CSI driver.
func TestInTreeGrows(t *testing.T) {
	r := newRig(t)
	m := r.rename("cinder.csi.openstack.org")
	claim, pv := r.Bind("data", v1.PersistentVolumeSource{Cinder: &v1.CinderPersistentVolumeSource{VolumeID: "c"}})
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
	claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	r.MustPrepare(volumetest.Pod(volumetest.ClaimVol(false)))
	r.kind.Wait()
	if got := r.driver.Volumes()["c"].Size; got != 2<<30 || m.of != 3 || m.not != 0 {
		t.Errorf("%d bytes, %d calls migrated, %d not", got, m.of, m.not)
	}
}

// TestInTreeInline: inline volumes of migrated kinds are staged like PersistentVolumes, and their directories stay in the pod's, whatever their names.
func TestInTreeInline(t *testing.T) {
	for _, test := range []struct {
		name, driver, handle, dir string
		source                    v1.VolumeSource
		readOnly                  bool
		wrong                     string
	}{
		{"aws", "ebs.csi.aws.com", "vol-1", "ebs.csi.aws.com-vol-1", v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1", ReadOnly: true}}, true, ""},
		{"portworx", "pxd.portworx.com", "../../../../x", "pxd.portworx.com-..~..~..~..~x", v1.VolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "../../../../x"}}, false, ""},
		{"too long", "cinder.csi.openstack.org", "", "", v1.VolumeSource{Cinder: &v1.CinderVolumeSource{VolumeID: strings.Repeat("x", 300)}}, false, "failed to translate in-tree pv to CSI: "},
		{"not to be translated", "ebs.csi.aws.com", "", "", v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://a/b/c/d"}}, false, "failed to translate in-tree pv to CSI: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			r.rename(test.driver)
			p := volumetest.Pod(volumetest.Vol("v", test.source))
			if test.wrong != "" {
				if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("%v, want %s", err, test.wrong)
				}
				r.mustClean("uid-1")
				r.want("")
				r.nothingLeft()
				return
			}
			r.MustPrepare(p)
			got := r.published()
			if got.VolumeId != test.handle || got.Readonly != test.readOnly || got.StagingTargetPath == "" || filepath.Base(filepath.Dir(got.TargetPath)) != test.dir {
				t.Errorf("%v", got)
			}
			if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || m.ReadOnly != test.readOnly {
				t.Errorf("%+v, %v", m, err)
			}
			r.restart()
			r.mustClean("uid-1")
			r.want("Stage Publish Unpublish Unstage")
			r.nothingLeft()
		})
	}
}
