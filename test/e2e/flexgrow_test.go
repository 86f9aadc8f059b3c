package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// growing creates a class whose volumes can be expanded, a PersistentVolume of the driver with 1Gi, and the claim "data" for it.
func (d *flexDriver) growing() {
	d.Helper()
	ctx := d.Context()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: d.name}, Provisioner: "kubernetes.io/no-provisioner", AllowVolumeExpansion: new(true)}
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: d.name}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, StorageClassName: class.Name, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{Driver: flexName, Options: map[string]string{"source": d.data}}},
	}}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: &class.Name, VolumeName: pv.Name, Resources: v1.VolumeResourceRequirements{Requests: size},
	}}
	d.Cleanup(func() {
		ctx := context.Background()
		_ = client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{})
		_ = client.StorageV1().StorageClasses().Delete(ctx, class.Name, metav1.DeleteOptions{})
	})
	_, err := client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	d.must(err)
	_, err = client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	d.must(err)
	_, err = client.CoreV1().PersistentVolumeClaims(d.name).Create(ctx, claim, metav1.CreateOptions{})
	d.must(err)
}

// wants raises the request of the claim.
func (d *flexDriver) wants(size string) {
	d.Helper()
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	_, err := client.CoreV1().PersistentVolumeClaims(d.name).Patch(d.Context(), "data", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	d.must(err)
}

// becomes waits until the claim's status is as wanted.
func (d *flexDriver) becomes(what string, ok func(v1.PersistentVolumeClaimStatus) bool) {
	d.Helper()
	d.eventually(3*time.Minute, "the claim "+what, func(ctx context.Context) error {
		claim, err := client.CoreV1().PersistentVolumeClaims(d.name).Get(ctx, "data", metav1.GetOptions{})
		if err == nil && !ok(claim.Status) {
			err = fmt.Errorf("it has %+v", claim.Status)
		}
		return err
	})
}

// TestFlexVolumeGrows: kube-controller-manager expands a flexVolume whose claim has grown, and the driver on the node follows beside the running pod,
// also after it has failed.
func TestFlexVolumeGrows(t *testing.T) {
	s := newSpace(t)
	d := newFlexDriver(s, cluster.Nodes[0])
	installFlex(s, cluster.Control)
	d.growing()
	pod := s.pod("a", d.node, "shell", "-c", "write /v/a x; sleep")
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: claimed("data")}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	readsAll(pod, "/v/a")
	uid := s.create(pod).UID
	s.ready("a")
	target := d.node.Dir("kubelet", "pods", string(uid), "volumes", strings.Replace(flexName, "/", "~", 1), d.name)

	s.must(os.WriteFile(d.program+".full", nil, 0o600))
	d.wants("2Gi")
	d.becomes("says why it has not grown", func(status v1.PersistentVolumeClaimStatus) bool {
		for _, c := range status.Conditions {
			if c.Type == v1.PersistentVolumeClaimNodeResizeError && strings.Contains(c.Message, "the pool is full") {
				return true
			}
		}
		return false
	})
	s.must(os.Remove(d.program + ".full"))
	d.becomes("has 2Gi", func(status v1.PersistentVolumeClaimStatus) bool {
		capacity := status.Capacity[v1.ResourceStorage]
		return capacity.Cmp(resource.MustParse("2Gi")) == 0 && len(status.Conditions) == 0 && len(status.AllocatedResourceStatuses) == 0
	})
	log, err := os.ReadFile(d.program + ".log")
	s.must(err)
	if want := "from 1073741824 to 2147483648 at " + target + "\n"; strings.Count(string(log), want) < 2 {
		t.Errorf("calls of the driver:\n%swant twice: %s", log, want)
	}
	events, err := client.CoreV1().Events(s.name).List(t.Context(), metav1.ListOptions{})
	s.must(err)
	seen := map[string]bool{}
	for _, e := range events.Items {
		seen[e.InvolvedObject.Kind+" "+e.Reason] = true
	}
	for _, want := range []string{"Pod VolumeResizeFailed", "Pod FileSystemResizeSuccessful", "PersistentVolumeClaim FileSystemResizeSuccessful"} {
		if !seen[want] {
			t.Errorf("no Event %q among %v", want, seen)
		}
	}
	d.ends("a")
}
