package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/registry"
)

// diskLimit limits a pod's containers to a few megabytes of disk.
var diskLimit = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("2Mi")}

// withVolume adds an emptyDir at /v to a pod.
func withVolume(pod *v1.Pod, limit *resource.Quantity) {
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: limit}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
}

// evictedFor waits until a pod was evicted because of its disk usage.
func (s *space) evictedFor(name string, patience time.Duration) {
	s.Helper()
	begin := time.Now()
	pod := s.ended(name, v1.PodFailed, patience)
	if pod.Status.Reason != "Evicted" {
		s.Errorf("%s: %s %q, want Evicted", name, pod.Status.Reason, pod.Status.Message)
	}
	s.Logf("%s is evicted after %.1f s: %s", name, time.Since(begin).Seconds(), pod.Status.Message)
}

// diskVictims sends requests to a Service, whose pod runs on a node, from all nodes, and reads the node's /stats/summary,
// until unharmed is called.
func (s *space) diskVictims(node *lab.Host) *victims {
	s.Helper()
	s.create(s.pod("good", node, "serve", "8080"))
	s.ready("good")
	address := s.service("good", 8080)
	v := s.victims()
	for _, host := range cluster.Nodes {
		web := func() error { return says(address+":80", hello("good")) }
		s.eventually(time.Minute, "the Service from "+host.Name, func(context.Context) error { return within(host, web) })
		v.ask("the Service from "+host.Name, host, web)
	}
	v.ask("/stats/summary", nil, func() error {
		ctx, cancel := context.WithTimeout(v.ctx, 20*time.Second)
		defer cancel()
		_, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + node.Name + "/proxy/stats/summary").DoRaw(ctx)
		return err
	})
	v.rounds(3)
	return v
}

// localVolume binds a claim to a local PersistentVolume, a directory of a node, and returns the directory.
func (s *space) localVolume(node *lab.Host, claim string) (dir string) {
	s.Helper()
	dir = node.Dir("local-" + s.name)
	s.must(os.MkdirAll(dir, 0o755))
	s.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.Error(err)
		}
	})
	ctx, core, class := s.Context(), client.CoreV1(), ""
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	_, err := core.PersistentVolumes().Create(ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain, ClaimRef: &v1.ObjectReference{Namespace: s.name, Name: claim},
		PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: dir}},
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node.Name}}}}}}},
	}}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		if err := core.PersistentVolumes().Delete(context.Background(), s.name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	_, err = core.PersistentVolumeClaims(s.name).Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: &class, VolumeName: s.name, Resources: v1.VolumeResourceRequirements{Requests: size},
	}}, metav1.CreateOptions{})
	s.must(err)
	return dir
}

// TestHostileDisk: pods use disk space in places that are hard to measure.
func TestHostileDisk(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	images := newRegistry(t, node, 5995, registry.Token)
	withVolumes, _ := images.addWith("public/volumes:1", map[string]any{"Volumes": map[string]any{"/data": map[string]any{}}})
	v := s.diskVictims(node)
	cases := []struct {
		name, image, command string
		volume               bool
	}{
		{"deep", lab.SampleImage, "burrow /v 40 3000000; sleep", true},
		{"deep-root", lab.SampleImage, "burrow /tmp 40 3000000; sleep", false},
		{"image-volume", withVolumes, "fill /data/f 3000000; sleep", false},
		{"message", lab.SampleImage, "fill /dev/termination-log 3000000; sleep", false},
		{"hidden", lab.SampleImage, "hide /v/f 3000000", true},
	}
	for _, c := range cases {
		pod := s.pod(c.name, node, "shell", "-c", c.command)
		pod.Spec.Containers[0].Image = c.image
		pod.Spec.Containers[0].Resources.Limits = diskLimit
		if c.volume {
			withVolume(pod, nil)
		}
		s.create(pod)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { (&space{T: t, name: s.name}).evictedFor(c.name, 3*time.Minute) })
	}
	v.rounds(5)
	v.unharmed()
	if n := s.ready("good").Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the good pod was restarted %d times", n)
	}
}

// TestHostileStall: one pod has very many files (WINKUBE_FILES), two have volumes that hang: the whole of an emptyDir, and
// a directory of a local PersistentVolume. Limits of other pods are still enforced.
func TestHostileStall(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	files := number(t, "WINKUBE_FILES", 200_000)
	v := s.diskVictims(node)
	size := resource.MustParse("1Gi")
	many := s.pod("many", node, "shell", "-c", fmt.Sprintf("litter /v %d; sleep", files))
	withVolume(many, &size)
	s.create(many)
	s.ready("many")
	stuck := s.pod("stuck", node, "sleep")
	withVolume(stuck, &size)
	uid := s.create(stuck).UID
	s.ready("stuck")
	s.frozenVolume(node, node.Dir("kubelet", "pods", string(uid), "volumes", "kubernetes.io~empty-dir", "v"))
	dir := s.localVolume(node, "local")
	s.must(os.Mkdir(filepath.Join(dir, "lost"), 0o755))
	half := s.pod("half-stuck", node, "sleep")
	withVolume(half, nil)
	half.Spec.Volumes[0].VolumeSource = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "local"}}
	s.create(half)
	s.ready("half-stuck")
	s.frozenVolume(node, filepath.Join(dir, "lost"))
	patience := 6 * time.Minute * time.Duration(1+files/200_000)
	s.eventually(patience, "many files", func(context.Context) error {
		if log := s.logs("many"); !strings.Contains(log, "littered") {
			return fmt.Errorf("log: %s", log)
		}
		return nil
	})
	small := resource.MustParse("1Mi")
	greedy := s.pod("greedy", node, "shell", "-c", "fill /v/f 3000000; sleep")
	withVolume(greedy, &small)
	s.create(greedy)
	s.evictedFor("greedy", 3*time.Minute)
	v.rounds(5)
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "many", metav1.DeleteOptions{}))
	took := s.eventually(patience, "many files removed", func(ctx context.Context) error {
		_, err := client.CoreV1().Pods(s.name).Get(ctx, "many", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("the pod is still there"))
	})
	t.Logf("%d files were removed with their pod in %.1f s", files, took.Seconds())
	v.unharmed()
	s.nodeReady(node.Name, true, 60*time.Second)
}
