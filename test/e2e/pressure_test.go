package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/test/lab"
)

// starved is a node whose kubelet has special eviction thresholds until the test ends, and a pod on it that must not be
// affected.
type starved struct {
	*space
	node *lab.Host
}

// starve restarts the second node's kubelet with additional flags.
func starve(t *testing.T, flags ...string) *starved {
	t.Helper()
	s := &starved{newSpace(t), cluster.Nodes[1]}
	s.create(s.pod("good", s.node, "sleep"))
	s.ready("good")
	// The condition must last until the pod "late" was refused, also on a slow machine.
	s.restart(append([]string{"--eviction-pressure-transition-period=15s"}, flags...))
	t.Cleanup(func() { // before the namespace is removed: its pods may be where only the kubelet with these flags finds them
		now := int64(0)
		err := client.CoreV1().Pods(s.name).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
		s.eventually(60*time.Second, "no pods", func(ctx context.Context) error {
			pods, err := client.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
			if err == nil && len(pods.Items) > 0 {
				err = fmt.Errorf("there are %d", len(pods.Items))
			}
			return err
		})
		s.restart(nil)
		s.nodeReady(s.node.Name, true, 60*time.Second)
	})
	return s
}

func (s *starved) restart(flags []string) {
	s.Helper()
	if s.node.ExtraArgs == nil {
		s.node.ExtraArgs = map[string][]string{}
	}
	s.node.ExtraArgs["kubelet"] = flags
	s.must(s.node.Process("kubelet").Restart(context.Background()))
}

// condition waits for a condition of the node.
func (s *starved) condition(kind v1.NodeConditionType, want v1.ConditionStatus, patience time.Duration) time.Duration {
	s.Helper()
	return s.eventually(patience, fmt.Sprintf("%s %s", kind, want), func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, s.node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == kind && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("it is %v", node.Status.Conditions)
	})
}

// evicted waits until greedy is evicted and checks what users see: its status, condition and Event, and the node's
// condition. A new pod must be rejected and the good one must keep running.
func (s *starved) evicted(kind v1.NodeConditionType, message string) {
	s.Helper()
	begin := time.Now()
	pod := s.ended("greedy", v1.PodFailed, 3*time.Minute)
	if pod.Status.Reason != "Evicted" || !strings.HasPrefix(pod.Status.Message, message) {
		s.Errorf("greedy: %s %q, want Evicted %q", pod.Status.Reason, pod.Status.Message, message)
	}
	disrupted := false
	for _, c := range pod.Status.Conditions {
		disrupted = disrupted || c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "TerminationByKubelet"
	}
	if !disrupted {
		s.Errorf("greedy has no condition DisruptionTarget: %+v", pod.Status.Conditions)
	}
	s.Logf("evicted after %.1f s: %s", time.Since(begin).Seconds(), pod.Status.Message)
	s.condition(kind, v1.ConditionTrue, time.Minute)
	late := s.pod("late", s.node, "sleep")
	late.Spec.NodeSelector, late.Spec.NodeName = nil, s.node.Name // bypasses the scheduler, which respects the taint
	s.create(late)
	refused := s.ended("late", v1.PodFailed, time.Minute)
	if want := fmt.Sprintf("The node had condition: [%s]. ", kind); refused.Status.Reason != "Evicted" || !strings.Contains(refused.Status.Message, want) {
		s.Errorf("late: %s %q, want Evicted %q", refused.Status.Reason, refused.Status.Message, want)
	}
	s.told("greedy", "Evicted", message)
	s.Logf("%s ended %.1f s later", kind, s.condition(kind, v1.ConditionFalse, 2*time.Minute).Seconds())
	if good := s.ready("good"); good.Status.ContainerStatuses[0].RestartCount != 0 {
		s.Errorf("the good pod was restarted: %+v", good.Status.ContainerStatuses)
	}
	s.allReady(3 * time.Minute)
}

// TestFilledDisk fills the node's file system, for the test a small tmpfs.
func TestFilledDisk(t *testing.T) {
	node := cluster.Nodes[1]
	dir := node.Dir("small")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		if out, err := node.Exec(context.Background(), args...); err != nil {
			t.Error(err, out)
		}
	}
	run("mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", dir)
	t.Cleanup(func() { run("umount", "--recursive", dir); os.Remove(dir) })
	s := starve(t, "--root-dir="+dir, "--eviction-hard=nodefs.available<40Mi")
	greedy := s.pod("greedy", s.node, "shell", "-c", "fill /v/f 70000000; sleep")
	greedy.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	greedy.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	s.create(greedy)
	s.evicted(v1.NodeDiskPressure, "The node was low on resource: ephemeral-storage. Threshold quantity: 40Mi, available: ")
}

// pressure skips tests that use some of the machine's memory and threads, unless they are requested.
func pressure(t *testing.T) {
	if os.Getenv("WINKUBE_PRESSURE") == "" {
		t.Skip("takes up to a minute: set WINKUBE_PRESSURE=1 to run it")
	}
}

// TestFilledMemory fills the memory for all of the node's pods, a small part of the machine's. It does not depend on
// the kernel's OOM killer.
func TestFilledMemory(t *testing.T) {
	pressure(t)
	used := kubepods(t, "memory.usage_in_bytes", "memory.current")
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	s := starve(t, "--eviction-hard=memory.available<100Mi", fmt.Sprintf("--system-reserved=memory=%d", int64(facts.Memory)-used-300<<20))
	s.create(s.pod("greedy", s.node, "hold", strconv.Itoa(230<<20)))
	s.evicted(v1.NodeMemoryPressure, "The node was low on resource: memory. Threshold quantity: 100Mi, available: ")
	// The kernel now sends notifications: the kubelet need not wait for its next measurement.
	begin := time.Now()
	s.create(s.pod("again", s.node, "hold", strconv.Itoa(230<<20)))
	s.ended("again", v1.PodFailed, 3*time.Minute)
	s.Logf("a second pod is evicted after %.1f s", time.Since(begin).Seconds())
	s.condition(v1.NodeMemoryPressure, v1.ConditionFalse, 2*time.Minute)
}

// TestForkBomb starts more threads than the node can spare; a limit of the pod stops it there.
func TestForkBomb(t *testing.T) {
	pressure(t)
	load, err := host.ReadLoad()
	if err != nil {
		t.Fatal(err)
	}
	s := starve(t, "--pod-max-pids=3000", fmt.Sprintf("--eviction-hard=pid.available<%d", load.MaxTasks-load.Tasks-1000))
	s.create(s.pod("greedy", s.node, "threads", "2000"))
	s.evicted(v1.NodePIDPressure, "The node was low on resource: pids. Threshold quantity: ")
}

// kubepods reads a number from the cgroup of all pods on the second node.
func kubepods(t *testing.T, v1, v2 string) int64 {
	t.Helper()
	below := filepath.Join(cluster.Nodes[1].Namespace(), "kubepods")
	data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/memory", below, v1))
	if os.IsNotExist(err) {
		data, err = os.ReadFile(filepath.Join("/sys/fs/cgroup", below, v2))
	}
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
