package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDiskLimits runs pods that exceed their disk limits in different ways. They are evicted as by upstream; a pod
// within its limits stays.
func TestDiskLimits(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	limit := v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("2Mi")}
	volume := func(pod *v1.Pod, size *resource.Quantity) {
		pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: size}}}}
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	size := resource.MustParse("1Mi")
	pods := []struct {
		name, command string
		make          func(*v1.Pod)
		want          string // "": it is not evicted
	}{
		{"good", "fill /v/f 900000; fill /f 500000; sleep", func(p *v1.Pod) { volume(p, &size); p.Spec.Containers[0].Resources.Limits = limit }, ""},
		{"volume", "fill /v/f 3000000; sleep", func(p *v1.Pod) { volume(p, &size) }, `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `},
		{"root", "fill /f 3000000; sleep", func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "other", Image: p.Spec.Containers[0].Image, Args: []string{"sleep"},
				Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("90Mi")}}})
			p.Spec.Containers[0].Resources.Limits = limit
		}, `Container main exceeded its local ephemeral storage limit "2Mi". `},
		{"log", "count 30000 100; sleep", func(p *v1.Pod) { p.Spec.Containers[0].Resources.Limits = limit },
			"Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "},
		{"together", "fill /v/f 1500000; fill /f 1500000; sleep", func(p *v1.Pod) { volume(p, nil); p.Spec.Containers[0].Resources.Limits = limit },
			"Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "},
	}
	for _, p := range pods {
		pod := s.pod(p.name, node, "shell", "-c", p.command)
		p.make(pod)
		s.create(pod)
	}
	begin := time.Now()
	for _, p := range pods {
		if p.want == "" {
			continue
		}
		pod := s.ended(p.name, v1.PodFailed, 3*time.Minute)
		if pod.Status.Reason != "Evicted" || pod.Status.Message != p.want {
			t.Errorf("%s: %s %q, want Evicted %q", p.name, pod.Status.Reason, pod.Status.Message, p.want)
		}
		disrupted := ""
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.DisruptionTarget {
				disrupted = fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
			}
		}
		if want := "True TerminationByKubelet " + p.want; disrupted != want {
			t.Errorf("%s: condition DisruptionTarget is %q, want %q", p.name, disrupted, want)
		}
		s.told(p.name, "Evicted", p.want)
		t.Logf("%s is evicted after %.1f s: %s", p.name, time.Since(begin).Seconds(), pod.Status.Message)
	}
	if pod := s.ready("good"); pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the good pod was restarted: %+v", pod.Status.ContainerStatuses)
	}
}

// TestDiskFull starts a pod whose directory has no room for its volume: the user sees why, and the pod starts by itself
// once there is room.
func TestDiskFull(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	large := strings.Repeat("x", 500_000)
	_, err := client.CoreV1().ConfigMaps(s.name).Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Data: map[string]string{"f": large}},
		metav1.CreateOptions{})
	s.must(err)
	pod := s.pod("full", node, "sleep")
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "winkube.test/room"}} // until its directory, whose name depends on the UID, is prepared
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "large"}}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	pod = s.create(pod)
	dir := node.Dir("kubelet", "pods", string(pod.UID))
	s.must(os.MkdirAll(dir, 0o750))
	run := func(args ...string) {
		out, err := node.Exec(t.Context(), args...)
		if err != nil {
			t.Fatal(err, out)
		}
	}
	run("mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", dir)
	pod.Spec.SchedulingGates = nil
	_, err = client.CoreV1().Pods(s.name).Update(t.Context(), pod, metav1.UpdateOptions{})
	s.must(err)
	message := s.told("full", "FailedMount", "no space left on device")
	begin := time.Now()
	run("mount", "-o", "remount,size=8m", dir)
	s.ready("full")
	t.Logf("%s; Ready %.1f s after space was freed", message, time.Since(begin).Seconds())
	out, err := cluster.Kubectl(t.Context(), "exec", "-n", s.name, "full", "--", "/sample", "cat", "/v/f")
	s.must(err)
	if strings.TrimSpace(out) != large {
		t.Errorf("the volume has %d bytes, want %d", len(out), len(large))
	}
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "full", metav1.DeleteOptions{}))
	s.eventually(time.Minute, "no directory of the pod", func(context.Context) error {
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			return fmt.Errorf("%s: %v", dir, err)
		}
		return nil
	})
}
