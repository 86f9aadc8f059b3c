package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// controlGroup reads a file of a pod's cgroup below its class (burstable, besteffort, "") on the first node; the file's
// name depends on v1 or v2.
func controlGroup(class, uid, controller, v1, v2 string) (string, error) {
	below := filepath.Join(cluster.Nodes[0].Namespace(), "kubepods", class, "pod"+uid)
	data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, below, v1))
	if errors.Is(err, fs.ErrNotExist) {
		data, err = os.ReadFile(filepath.Join("/sys/fs/cgroup", below, v2))
	}
	return strings.TrimSpace(string(data)), err
}

// TestPodCgroups: the pod's limits apply to the pod as a whole and follow a resize, and its cgroup is removed if the
// pod goes while the agent is dead.
func TestPodCgroups(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	pod := s.pod("limited", node, "serve", "8080")
	pod.Spec.Containers[0].Resources = v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("32Mi")},
		Limits:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("200m"), v1.ResourceMemory: resource.MustParse("64Mi")},
	}
	uid := string(s.create(pod).UID)
	s.ready("limited")
	quota := func() (string, error) { return controlGroup("burstable", uid, "cpu", "cpu.cfs_quota_us", "cpu.max") }
	if got, err := quota(); err != nil || !strings.HasPrefix(got, "20000") {
		t.Errorf("CPU quota %q (%v), want 20000", got, err)
	}
	if got, err := controlGroup("burstable", uid, "memory", "memory.limit_in_bytes", "memory.max"); err != nil || got != "67108864" {
		t.Errorf("memory limit %q (%v), want 67108864", got, err)
	}
	patch := `{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"300m"}}}]}}`
	_, err := client.CoreV1().Pods(s.name).Patch(t.Context(), "limited", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize")
	s.must(err)
	s.eventually(time.Minute, "quota after the resize", func(context.Context) error {
		if got, err := quota(); err != nil || !strings.HasPrefix(got, "30000") {
			return fmt.Errorf("it is %q (%v)", got, err)
		}
		return nil
	})

	s.must(node.Process("kubelet").Kill9(t.Context()))
	now := int64(0)
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "limited", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	s.must(node.Process("kubelet").Start(t.Context()))
	took := s.eventually(60*time.Second, "cgroup gone", func(context.Context) error {
		if got, err := quota(); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it is still there: quota %q (%v)", got, err)
		}
		return nil
	})
	t.Logf("the cgroup of a pod that was deleted while the agent was dead is gone %.1f s after its start", took.Seconds())
}
