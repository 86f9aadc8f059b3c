package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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

// TestHostileDisk: pods use disk space in places that are hard to measure.
func TestHostileDisk(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	images := newRegistry(t, node, 5995, registry.Token)
	withVolumes, _ := images.addWith("public/volumes:1", map[string]any{"Volumes": map[string]any{"/data": map[string]any{}}})
	s.create(s.pod("good", node, "sleep"))
	s.ready("good")
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
		t.Run(c.name, func(t *testing.T) { (&space{t, s.name}).evictedFor(c.name, 3*time.Minute) })
	}
	if n := s.ready("good").Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the good pod was restarted %d times", n)
	}
}

// TestHostileStall: one pod has very many files, another's volume hangs. Limits of other pods are still enforced.
func TestHostileStall(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	size := resource.MustParse("1Gi")
	many := s.pod("many", node, "shell", "-c", "litter /v 200000; sleep")
	withVolume(many, &size)
	s.create(many)
	s.ready("many")
	stuck := s.pod("stuck", node, "sleep")
	withVolume(stuck, &size)
	uid := s.create(stuck).UID
	s.ready("stuck")
	s.frozenVolume(node, node.Dir("kubelet", "pods", string(uid), "volumes", "kubernetes.io~empty-dir", "v"))
	s.eventually(6*time.Minute, "many files", func(context.Context) error {
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
	begin := time.Now()
	if _, err := cluster.Kubectl(t.Context(), "get", "--raw", "/api/v1/nodes/"+node.Name+"/proxy/stats/summary", "--request-timeout=50s"); err != nil {
		t.Errorf("/stats/summary: %v", err)
	}
	t.Logf("/stats/summary after %s", time.Since(begin).Round(time.Millisecond))
	s.nodeReady(node.Name, true, 60*time.Second)
}
