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

// starved is a node whose kubelet runs with special eviction thresholds until the test ends, and a pod on it that must not suffer.
type starved struct {
	*space
	node *lab.Host
}

// starve restarts the kubelet of the second node with further flags.
func starve(t *testing.T, flags ...string) *starved {
	t.Helper()
	s := &starved{newSpace(t), cluster.Nodes[1]}
	s.create(s.pod("good", s.node, "sleep"))
	s.ready("good")
	s.restart(append([]string{"--eviction-pressure-transition-period=5s"}, flags...))
	t.Cleanup(func() { // before the namespace goes: its pods may lie where the kubelet looks with the flags alone
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

// evicted waits until greedy is, and checks what users see: its status, its condition, its event, the node's condition, that a pod which
// comes now is refused, and that the good one lives.
func (s *starved) evicted(kind v1.NodeConditionType, message string) {
	s.Helper()
	begin := time.Now()
	pod := s.ended("greedy", v1.PodFailed, 60*time.Second)
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
	s.condition(kind, v1.ConditionTrue, 10*time.Second)
	late := s.pod("late", s.node, "sleep")
	late.Spec.NodeSelector, late.Spec.NodeName = nil, s.node.Name // past the scheduler, which sees the taint
	s.create(late)
	refused := s.ended("late", v1.PodFailed, 20*time.Second)
	if want := fmt.Sprintf("The node had condition: [%s]. ", kind); refused.Status.Reason != "Evicted" || !strings.Contains(refused.Status.Message, want) {
		s.Errorf("late: %s %q, want Evicted %q", refused.Status.Reason, refused.Status.Message, want)
	}
	s.eventually(20*time.Second, "event", func(ctx context.Context) error {
		_, err := s.event(ctx, "greedy", "Evicted", message)
		return err
	})
	s.Logf("%s ended %.1f s later", kind, s.condition(kind, v1.ConditionFalse, 60*time.Second).Seconds())
	if good := s.ready("good"); good.Status.ContainerStatuses[0].RestartCount != 0 {
		s.Errorf("the good pod was restarted: %+v", good.Status.ContainerStatuses)
	}
	s.allReady(60 * time.Second)
}

// TestFilledDisk fills the node's file system, which is a small one in memory for the time of the test.
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

// pressure is for tests that take memory and threads of the machine, however few.
func pressure(t *testing.T) {
	if os.Getenv("WINKUBE_PRESSURE") == "" {
		t.Skip("takes up to a minute: set WINKUBE_PRESSURE=1 to run it")
	}
}

// TestFilledMemory fills the memory that the node's pods may have together, a small part of the machine's. The kernel, which would end some
// process of theirs, is not needed.
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
	// By now the kernel watches: the kubelet need not wait for its next measurement.
	begin := time.Now()
	s.create(s.pod("again", s.node, "hold", strconv.Itoa(230<<20)))
	s.ended("again", v1.PodFailed, 60*time.Second)
	s.Logf("a second pod is evicted after %.1f s", time.Since(begin).Seconds())
	s.condition(v1.NodeMemoryPressure, v1.ConditionFalse, 60*time.Second)
}

// TestForkBomb starts more threads than the node can spare; a limit of the pod keeps them from being more than that.
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

// kubepods reads a number of the cgroup of all pods of the second node.
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
