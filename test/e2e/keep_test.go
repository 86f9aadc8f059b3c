package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUpAgain runs Up on a running cluster: it keeps everything.
func TestUpAgain(t *testing.T) {
	s := newSpace(t)
	s.allReady(3 * time.Minute)
	before := s.snapshot()
	begin := time.Now()
	s.must(cluster.Up(t.Context()))
	took := time.Since(begin)
	if diff := difference(before, s.snapshot()); diff != "" {
		t.Errorf("containers or restart counts changed:\n%s", diff)
	}
	t.Logf("Up on a running cluster took %.1f s and restarted nothing", took.Seconds())
}

const staticManifest = `apiVersion: v1
kind: Pod
metadata:
  name: fixed
  namespace: %s
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: winkube/sample:1
    args: [sleep]
    env:
    - name: VALUE
      value: first
`

// TestStaticPod adds a manifest to a node's directory, changes it and removes it.
func TestStaticPod(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	path := node.Dir("manifests", "e2e-static.yaml")
	manifest := fmt.Sprintf(staticManifest, s.name)
	t.Cleanup(func() { os.Remove(path) })
	s.must(os.WriteFile(path, []byte(manifest), 0o644))
	name := "fixed-" + node.Name
	mirror := func(ctx context.Context) (*v1.Pod, error) {
		return client.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
	}
	begin := time.Now()
	value := func(want string) {
		s.eventually(60*time.Second, "static pod with value "+want, func(ctx context.Context) error {
			pod, err := mirror(ctx)
			if err != nil {
				return err
			}
			if got := pod.Spec.Containers[0].Env[0].Value; got != want {
				return fmt.Errorf("the mirror has value %s", got)
			}
			if err := isReady(pod); err != nil {
				return err
			}
			out, err := cluster.Kubectl(ctx, "exec", "-n", s.name, name, "--", "/sample", "env")
			if err == nil && !strings.Contains(out, "VALUE="+want) {
				err = fmt.Errorf("the container has %s", out)
			}
			return err
		})
	}
	value("first")
	started := time.Since(begin)

	// Deleting the mirror must not end the pod: the file decides.
	pod, err := mirror(t.Context())
	s.must(err)
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), name, metav1.DeleteOptions{}))
	s.eventually(60*time.Second, "a new mirror of the same container", func(ctx context.Context) error {
		now, err := mirror(ctx)
		if err != nil {
			return err
		}
		if now.UID == pod.UID {
			return fmt.Errorf("still the old mirror")
		}
		if err := isReady(now); err != nil {
			return err
		}
		if got, want := now.Status.ContainerStatuses[0].ContainerID, pod.Status.ContainerStatuses[0].ContainerID; got != want {
			return fmt.Errorf("container %s, was %s", got, want)
		}
		return nil
	})

	begin = time.Now()
	s.must(os.WriteFile(path, []byte(strings.Replace(manifest, "value: first", "value: second", 1)), 0o644))
	value("second")
	changed := time.Since(begin)
	begin = time.Now()
	s.must(os.Remove(path))
	s.eventually(60*time.Second, "static pod gone", func(ctx context.Context) error {
		if _, err := mirror(ctx); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the mirror is there (%v)", err)
		}
		return nil
	})
	t.Logf("static pod: Ready %.1f s after its file was written, changed after %.1f s, gone after %.1f s", started.Seconds(), changed.Seconds(), time.Since(begin).Seconds())
}
