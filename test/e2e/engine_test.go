package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/test/lab"
)

// restartEngine restarts dockerd and waits until it responds.
func (s *space) restartEngine(host *lab.Host) {
	s.Helper()
	ctx := context.Background()
	s.must(host.Process("dockerd").Restart(ctx))
	s.must(host.WaitEngine(ctx))
}

// TestEngineRestartLive restarts an engine whose containers survive that.
func TestEngineRestartLive(t *testing.T) {
	tr := startTraffic(t)
	node := cluster.Nodes[0]
	before := tr.snapshot()
	var gone time.Duration
	longest, seen := tr.during(10*time.Second, func() {
		begin := time.Now()
		tr.restartEngine(node)
		gone = time.Since(begin)
	})
	if longest > 0 {
		t.Errorf("the service was silent for %s:\n%s", longest, seen)
	}
	if diff := difference(before, tr.snapshot()); diff != "" {
		t.Errorf("containers or restart counts changed:\n%s", diff)
	}
	stream := tr.unbroken()
	begin := time.Now()
	tr.create(tr.pod("after", node, "sleep"))
	tr.ready("after")
	t.Logf("engine down for %.1f s, live-restore: no container restarted, service never silent, pod-to-pod %s; a new pod Ready after %.1f s",
		gone.Seconds(), stream, time.Since(begin).Seconds())
}

// TestEngineRestart restarts an engine whose containers do not survive that: each pod restarts once.
func TestEngineRestart(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	s.create(s.pod("own", node, "sleep"))
	s.ready("own")
	s.allReady(3 * time.Minute)
	node.LiveRestore = false
	t.Cleanup(func() {
		node.LiveRestore = true
		s.restartEngine(node)
		s.allReady(3 * time.Minute)
	})
	s.restartEngine(node) // the next restart kills its containers
	s.settled(node)

	before := s.counts(node)
	begin := time.Now()
	s.restartEngine(node)
	gone := time.Since(begin)
	s.eventually(4*time.Minute, "every container restarted", func(context.Context) error {
		for key, count := range before {
			if now := s.counts(node); now[key] <= count {
				return fmt.Errorf("%v has restart count %d, had %d", key, now[key], count)
			}
		}
		return nil
	})
	s.settled(node)
	took := time.Since(begin)
	after := s.counts(node)
	for key, count := range before {
		if after[key] != count+1 {
			t.Errorf("%v: restart count %d, want %d", key, after[key], count+1)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d containers in the API before, %d after", len(before), len(after))
	}
	t.Logf("engine down for %.1f s, no live-restore: %d containers restarted exactly once, pods kept their UIDs, all Ready %.1f s after the stop",
		gone.Seconds(), len(before), took.Seconds())
}

// TestForgottenContainer: an engine that is stopped while it starts a container may report afterwards that it never
// ran. If it runs nevertheless, with an address that the engine gives to others, it is stopped before the container is
// started again.
func TestForgottenContainer(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	uid := s.create(s.pod("web", node, "sleep")).UID
	id := strings.TrimPrefix(s.ready("web").Status.ContainerStatuses[0].ContainerID, "docker://")
	kubelet := node.Process("kubelet")
	s.must(kubelet.Kill9(t.Context()))
	restarted := false
	t.Cleanup(func() {
		if !restarted {
			s.must(kubelet.Start(context.Background()))
		}
	})
	s.must(node.Engine().Kill(t.Context(), id))
	stray := exec.Command("sleep", "600")
	s.must(stray.Start())
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }()
	t.Cleanup(func() { _ = stray.Process.Kill() })
	groups, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", node.Namespace(), "kubepods/besteffort/pod"+string(uid)))
	s.must(err)
	if len(groups) == 0 {
		groups = []string{filepath.Join("/sys/fs/cgroup", node.Namespace(), "kubepods/besteffort/pod"+string(uid))}
	}
	for _, group := range groups {
		if strings.Contains(group, "/cpuset/") {
			continue // cpuset accepts no process until its CPUs are set, and is not searched
		}
		dir := filepath.Join(group, id)
		s.must(os.MkdirAll(dir, 0o755))
		s.must(os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(stray.Process.Pid)), 0o644))
	}
	s.must(kubelet.Start(t.Context()))
	restarted = true
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Error("the process of the forgotten container still runs")
	}
	s.eventually(60*time.Second, "the container runs again", func(context.Context) error {
		if now := s.get("web").Status.ContainerStatuses[0]; now.RestartCount != 1 || !now.Ready {
			return fmt.Errorf("it was restarted %d times, ready: %t", now.RestartCount, now.Ready)
		}
		return nil
	})
}

// key is one container of one pod.
type key struct {
	uid            types.UID
	pod, container string
}

// counts returns the restart counts of a node's pods.
func (s *space) counts(node *lab.Host) map[key]int32 {
	s.Helper()
	pods, err := client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	s.must(err)
	counts := map[key]int32{}
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			counts[key{pod.UID, pod.Namespace + "/" + pod.Name, status.Name}] = status.RestartCount
		}
	}
	return counts
}

// settled waits until the API's state of a node's containers matches the engine's, and all pods are Ready.
func (s *space) settled(node *lab.Host) {
	s.Helper()
	s.eventually(4*time.Minute, "the API agrees with the engine of "+node.Name, func(ctx context.Context) error {
		running := map[string]bool{}
		for _, id := range s.running(node) {
			running["docker://"+id] = true
		}
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.Status.Phase != v1.PodRunning {
				return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
			}
			for _, status := range pod.Status.ContainerStatuses {
				if !running[status.ContainerID] {
					return fmt.Errorf("container %s of pod %s does not run", status.ContainerID, pod.Name)
				}
			}
			if err := isReady(pod); err != nil {
				return err
			}
		}
		return nil
	})
}
