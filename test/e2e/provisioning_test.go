package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/test/csidriver"
	"github.com/winkube/winkube/test/lab"
)

// provisioned is a test's claims on volumes that upstream's sidecars provision.
type provisioned struct {
	*csiDriver
	csidriver.Outside
	volumes []string // handles
	names   []string // of PersistentVolumes
}

func newProvisioned(s *space, node *lab.Host) *provisioned {
	return &provisioned{csiDriver: &csiDriver{s, node, cluster.StorageData()}, Outside: csidriver.Outside{Data: cluster.StorageData()}}
}

// claims creates a claim of the default class; from is its data source, or nil.
func (p *provisioned) claims(name, size string, from *v1.TypedLocalObjectReference) {
	p.Helper()
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, DataSource: from,
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
	}}
	if _, err := client.CoreV1().PersistentVolumeClaims(p.name).Create(p.Context(), claim, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
}

// volume returns the handle of a claim's volume, which must belong to a node.
func (p *provisioned) volume(claim, node string) (handle string) {
	p.Helper()
	got, err := client.CoreV1().PersistentVolumeClaims(p.name).Get(p.Context(), claim, metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	pv, err := client.CoreV1().PersistentVolumes().Get(p.Context(), got.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		p.Fatalf("claim %s is %s: %v", claim, got.Status.Phase, err)
	}
	want := []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{Key: lab.StorageTopology, Operator: v1.NodeSelectorOpIn, Values: []string{node}}}}}
	if pv.Spec.NodeAffinity == nil || fmt.Sprint(pv.Spec.NodeAffinity.Required.NodeSelectorTerms) != fmt.Sprint(want) {
		p.Errorf("volume of claim %s belongs to %v, want %v", claim, pv.Spec.NodeAffinity, want)
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != lab.StorageDriver || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
		p.Fatalf("volume of claim %s: %+v", claim, pv.Spec)
	}
	p.volumes, p.names = append(p.volumes, pv.Spec.CSI.VolumeHandle), append(p.names, pv.Name)
	return pv.Spec.CSI.VolumeHandle
}

// killedDuring kills the kubelet while the driver has a call of a method for a volume, which cause has it make. The
// driver then goes on, and the next kubelet starts.
func (p *provisioned) killedDuring(method, handle string, cause func()) {
	p.Helper()
	before := p.calls(method, handle)
	p.must(p.Hang(method))
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			p.must(p.Resume(method))
		}
	}
	defer resume()
	cause()
	p.eventually(2*time.Minute, "the driver has "+method, func(context.Context) error {
		if p.calls(method, handle) == before {
			return errors.New("not yet")
		}
		return nil
	})
	kubelet := p.node.Process("kubelet")
	p.must(kubelet.Kill9(context.Background()))
	resume()
	p.must(kubelet.Start(context.Background()))
}

// reads starts a pod that is Ready if the volume of a claim has a file. The scheduler chooses the node if it is nil.
func (p *provisioned) reads(name, claim, file string, node *lab.Host) *v1.Pod {
	p.Helper()
	pod := p.pod(name, p.node, "sleep")
	if node == nil {
		pod.Spec.NodeSelector = nil
	} else {
		pod.Spec.NodeSelector[v1.LabelHostname] = node.Name
	}
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: claimed(claim)}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	readsAll(pod, file)
	p.create(pod)
	return p.ready(name)
}

// grows asks for a larger volume.
func (p *provisioned) grows(claim, size string) {
	p.Helper()
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	if _, err := client.CoreV1().PersistentVolumeClaims(p.name).Patch(p.Context(), claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		p.Fatal(err)
	}
}

// grown waits until a claim has a size and nothing is left to do.
func (p *provisioned) grown(claim, size string) {
	p.Helper()
	p.eventually(90*time.Second, "claim "+claim+" has "+size, func(ctx context.Context) error {
		got, err := client.CoreV1().PersistentVolumeClaims(p.name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if capacity := got.Status.Capacity[v1.ResourceStorage]; capacity.Cmp(resource.MustParse(size)) != 0 || len(got.Status.Conditions) > 0 || len(got.Status.AllocatedResourceStatuses) > 0 {
			return fmt.Errorf("it has %s, %v, %v", &capacity, got.Status.Conditions, got.Status.AllocatedResourceStatuses)
		}
		return nil
	})
}

// snapshotOf takes a snapshot of a claim's volume and waits until it can be restored. It returns the snapshot's handle.
func (p *provisioned) snapshotOf(claim, name string) string {
	p.Helper()
	file := filepath.Join(p.TempDir(), name+".yaml")
	p.must(os.WriteFile(file, fmt.Appendf(nil, "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: %s, namespace: %s}\n"+
		"spec:\n  volumeSnapshotClassName: %s\n  source: {persistentVolumeClaimName: %s}\n", name, p.name, lab.SnapshotClass, claim), 0o600))
	if _, err := cluster.Kubectl(p.Context(), "apply", "-f", file); err != nil {
		p.Fatal(err)
	}
	if _, err := cluster.Kubectl(p.Context(), "-n", p.name, "wait", "--for=jsonpath={.status.readyToUse}=true", "--timeout=60s", "volumesnapshot/"+name); err != nil {
		p.Fatal(err)
	}
	content, err := cluster.Kubectl(p.Context(), "-n", p.name, "get", "volumesnapshot/"+name, "-o", "jsonpath={.status.boundVolumeSnapshotContentName}")
	if err != nil {
		p.Fatal(err)
	}
	handle, err := cluster.Kubectl(p.Context(), "get", "volumesnapshotcontent/"+content, "-o", "jsonpath={.status.snapshotHandle}")
	if err != nil || handle == "" {
		p.Fatalf("snapshot %s has no handle: %v", name, err)
	}
	return handle
}

// nothingLeft waits until volumes and snapshots are gone from the API, the driver's directory and the nodes.
func (p *provisioned) nothingLeft(ctx context.Context, snapshots ...string) error {
	var left []string
	pvs, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pv := range pvs.Items {
		if pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Namespace == p.name {
			left = append(left, "PersistentVolume "+pv.Name+" "+string(pv.Status.Phase))
		}
	}
	attachments, err := client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, a := range attachments.Items {
		if name := a.Spec.Source.PersistentVolumeName; name != nil && slices.Contains(p.names, *name) {
			left = append(left, "VolumeAttachment of "+*name+" on "+a.Spec.NodeName)
		}
	}
	for kind, handles := range map[string][]string{"volumes": p.volumes, "snapshots": snapshots} {
		for _, handle := range handles {
			path := filepath.Join(p.data, kind, handle)
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				left = append(left, "in the driver's directory: "+path)
			}
		}
	}
	for _, host := range cluster.Nodes {
		left = append(left, (&csiDriver{p.space, host, p.data}).left()...)
		node, err := client.CoreV1().Nodes().Get(ctx, host.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, handle := range p.volumes {
			for _, name := range node.Status.VolumesInUse {
				if strings.HasSuffix(string(name), "^"+handle) {
					left = append(left, host.Name+": volumesInUse "+string(name))
				}
			}
			for _, volume := range node.Status.VolumesAttached {
				if strings.HasSuffix(string(volume.Name), "^"+handle) {
					left = append(left, host.Name+": volumesAttached "+string(volume.Name))
				}
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
	return nil
}

// TestProvisioning: claims of the default StorageClass get volumes of the node that their pod runs on. They keep their
// data, grow, and are restored from a snapshot on another node, while the kubelet is killed in the middle of each
// step. Deleted claims leave nothing.
func TestProvisioning(t *testing.T) {
	if cluster.Storage != lab.StorageCSI {
		t.Skip("nothing provisions volumes here: make up STORAGE=csi, then run this test again")
	}
	s := newSpace(t)
	first, second := cluster.Nodes[1], cluster.Nodes[0]
	p := newProvisioned(s, first)
	kubelet := first.Process("kubelet")

	p.claims("data", "1Gi", nil)
	p.uses("writer", claimed("data"))
	s.ready("writer")
	handle := p.volume("data", first.Name)

	s.allReady(2 * time.Minute) // another test may have left them starting
	before := s.snapshot()
	p.must(kubelet.Kill9(context.Background()))
	p.must(kubelet.Start(context.Background()))
	s.nodeReady(first.Name, true, 60*time.Second)
	p.killedDuring("NodeExpandVolume", handle, func() { p.grows("data", "2Gi") })
	p.grown("data", "2Gi")
	if diff := difference(before, s.snapshot()); diff != "" {
		t.Errorf("containers or restart counts changed:\n%s", diff)
	}
	p.wants(handle, 1, 1, 0, 0)

	p.killedDuring("NodeUnpublishVolume", handle, func() {
		p.must(client.CoreV1().Pods(p.name).Delete(context.Background(), "writer", metav1.DeleteOptions{}))
	})
	p.eventually(60*time.Second, "pod writer gone", func(ctx context.Context) error { return s.gone(ctx, "writer") })
	if again := p.reads("reader", "data", "/v/writer", nil); again.Spec.NodeName != first.Name {
		t.Errorf("the second pod runs on %s, the volume is on %s", again.Spec.NodeName, first.Name)
	}

	snapshot := p.snapshotOf("data", "s")
	p.claims("restored", "2Gi", &v1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "s"})
	p.reads("elsewhere", "restored", "/v/writer", second)
	p.volume("restored", second.Name)
	p.ends("reader", "elsewhere")

	if _, err := cluster.Kubectl(context.Background(), "-n", p.name, "delete", "volumesnapshot/s", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	for _, claim := range []string{"data", "restored"} {
		p.must(client.CoreV1().PersistentVolumeClaims(p.name).Delete(context.Background(), claim, metav1.DeleteOptions{}))
	}
	s.eventually(90*time.Second, "nothing left", func(ctx context.Context) error { return p.nothingLeft(ctx, snapshot) })
}
