package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// firstWithAnnotations is the release of Docker from which on engines pass annotations to the runtime.
const firstWithAnnotations = 24

// TestShim: one shim serves all containers of a pod and no other's. A pod survives the end of each of its containers and of its shim, and leaves no
// shim and no socket behind.
func TestShim(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	release, _, _ := strings.Cut(strings.TrimPrefix(s.node(node.Name).Status.NodeInfo.ContainerRuntimeVersion, "docker://"), ".")
	if number, err := strconv.Atoi(release); err != nil || number < firstWithAnnotations {
		t.Skipf("Docker %s does not pass annotations on, so that each container has another shim", release)
	}
	two := s.pod("two", node, "sleep")
	two.Spec.Containers = append(two.Spec.Containers, v1.Container{Name: "second", Image: lab.SampleImage, Args: []string{"sleep"}})
	s.create(two)
	s.create(s.pod("beside", node, "sleep"))
	two = s.ready("two")
	beside := containerID(s.ready("beside"))
	shim := s.onlyShim(two, node, 3)
	if other := s.shimOf(node, beside); other == shim {
		t.Fatalf("two pods share the shim %d", shim)
	}

	s.must(node.Engine().Kill(t.Context(), containerID(two)))
	app := s.restartedTo(1, 0)
	if now := s.onlyShim(s.get("two"), node, 3); now != shim {
		t.Errorf("a restarted container has moved the pod from shim %d to %d", shim, now)
	}
	s.must(node.Engine().Kill(t.Context(), s.sandboxOf(node, two)))
	box := s.restartedTo(2, 1)
	shim = s.onlyShim(s.get("two"), node, 3)

	process, err := os.FindProcess(shim)
	s.must(err)
	s.must(process.Kill())
	whole := s.restartedTo(3, 2)
	now := s.onlyShim(s.get("two"), node, 3)
	if now == shim {
		t.Errorf("the pod still has shim %d, which was killed", shim)
	}
	if after := s.ready("beside"); containerID(after) != beside {
		t.Errorf("the pod beside it was restarted: %s, was %s", containerID(after), beside)
	}
	left := s.socketsOf(now)
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "two", metav1.DeleteOptions{}))
	s.eventually(time.Minute, "the shim of a deleted pod gone", func(context.Context) error {
		for _, path := range append(left, fmt.Sprintf("/proc/%d", now)) {
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is there: %v", path, err)
			}
		}
		return nil
	})
	t.Logf("Ready again %.1f s after a container was killed, %.1f s after the sandbox, %.1f s after the shim", app.Seconds(), box.Seconds(), whole.Seconds())
}

// restartedTo waits until the containers of pod two have been restarted that often, at least, and the pod is Ready.
func (s *space) restartedTo(first, second int32) time.Duration {
	s.Helper()
	return s.eventually(time.Minute, fmt.Sprintf("pod two Ready after %d and %d restarts", first, second), func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(s.name).Get(ctx, "two", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range pod.Status.ContainerStatuses {
			if want := map[string]int32{"main": first, "second": second}[c.Name]; c.RestartCount < want {
				return fmt.Errorf("container %s was restarted %d times", c.Name, c.RestartCount)
			}
		}
		return isReady(pod)
	})
}

// onlyShim waits until a pod has so many running containers, with its sandbox, and all of them one shim, and returns that.
func (s *space) onlyShim(pod *v1.Pod, node *lab.Host, containers int) (shim int) {
	s.Helper()
	s.eventually(time.Minute, "one shim for all containers", func(ctx context.Context) error {
		list, err := node.Engine().Containers(ctx)
		if err != nil {
			return err
		}
		shims, running := map[int]bool{}, 0
		for _, c := range list {
			if c.Labels["io.kubernetes.pod.uid"] != string(pod.UID) || c.State != "running" {
				continue
			}
			running++
			if shim, err = parentShim(ctx, node, c.ID); err != nil {
				return err
			}
			shims[shim] = true
		}
		if running != containers || len(shims) != 1 {
			return fmt.Errorf("%d running containers have the shims %v, want %d with one", running, shims, containers)
		}
		return nil
	})
	return shim
}

// shimOf returns the process through which the engine runs a container.
func (s *space) shimOf(node *lab.Host, id string) int {
	s.Helper()
	shim, err := parentShim(s.Context(), node, id)
	s.must(err)
	return shim
}

// parentShim returns the parent of a container's first process, which must be a shim.
func parentShim(ctx context.Context, node *lab.Host, id string) (int, error) {
	details, err := node.Engine().Inspect(ctx, id)
	if err != nil {
		return 0, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", details.State.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "\nPPid:")
	line, _, _ := strings.Cut(rest, "\n")
	parent, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return 0, err
	}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", parent))
	if err == nil && !strings.Contains(string(command), "containerd-shim") {
		err = fmt.Errorf("the parent of process %d is no shim: %q", details.State.Pid, command)
	}
	return parent, err
}

// socketsOf returns the files of the sockets that a shim has open.
func (s *space) socketsOf(shim int) (files []string) {
	s.Helper()
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", shim))
	s.must(err)
	open := map[string]bool{}
	for _, descriptor := range descriptors {
		if target, err := os.Readlink(descriptor); err == nil {
			open[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", shim))
	s.must(err)
	for line := range strings.Lines(string(list)) { // Num RefCount Protocol Flags Type St Inode Path
		if fields := strings.Fields(line); len(fields) == 8 && open[fields[6]] && !slices.Contains(files, fields[7]) {
			files = append(files, fields[7])
		}
	}
	if len(files) == 0 {
		s.Fatalf("shim %d listens nowhere:\n%s", shim, list)
	}
	return files
}
