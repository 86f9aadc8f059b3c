package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/output"
)

// freeze stops a process until the returned function is called or the test ends.
func (s *space) freeze(pid int) (thaw func()) {
	s.Helper()
	s.must(exec.Command("kill", "-STOP", strconv.Itoa(pid)).Run())
	thaw = func() { _ = exec.Command("kill", "-CONT", strconv.Itoa(pid)).Run() }
	s.Cleanup(thaw)
	return thaw
}

// TestEngineHangs freezes dockerd: the node reports why it is not ready. When the engine responds again, the state is
// as before.
func TestEngineHangs(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	pod := s.pod("probed", node, "serve", "8080")
	probe := func(handler v1.ProbeHandler) *v1.Probe {
		return &v1.Probe{ProbeHandler: handler, PeriodSeconds: 1, TimeoutSeconds: 3, FailureThreshold: 3}
	}
	// While the engine hangs, the command's timeout expires more often than the threshold allows. On a slow machine without a fault it does not.
	pod.Spec.Containers[0].LivenessProbe = probe(v1.ProbeHandler{Exec: sample("hostname")})
	pod.Spec.Containers[0].LivenessProbe.FailureThreshold = 5
	pod.Spec.Containers[0].ReadinessProbe = probe(v1.ProbeHandler{HTTPGet: httpGet("/healthz", 8080)})
	s.create(pod)
	s.create(s.pod("leaving", node, "sleep"))
	s.ready("probed")
	s.ready("leaving")
	s.allReady(3 * time.Minute)
	before := s.running(node)
	pid, _ := node.Process("dockerd").PID()
	frozen := time.Now()
	thaw := s.freeze(pid)
	s.create(s.pod("asked", node, "sleep"))
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "leaving", metav1.DeleteOptions{}))
	notReady := s.nodeReady(node.Name, false, time.Minute)
	told := s.nodeMessage(node.Name)
	if !strings.Contains(told, "container runtime is down") || !strings.Contains(told, "did not answer") {
		t.Errorf("the node says %q", told)
	}
	out, err := cluster.Kubectl(t.Context(), "get", "--raw", "/api/v1/nodes/"+node.Name+"/proxy/debug/pods")
	if err != nil || !strings.Contains(out, "probed") {
		t.Errorf("the kubelet does not answer: %v\n%s", err, out)
	}
	if rest := 30*time.Second - time.Since(frozen); rest > 0 {
		time.Sleep(rest) // the fault has a fixed duration
	}
	thaw()
	hung := time.Since(frozen)
	ready := s.nodeReady(node.Name, true, time.Minute)
	asked := time.Now()
	s.ready("asked")
	s.eventually(60*time.Second, "pod leaving gone", func(ctx context.Context) error { return s.gone(ctx, "leaving") })
	after := strings.Join(s.running(node), "\n")
	kept := 0
	for _, id := range before {
		if strings.Contains(after, id) {
			kept++
		}
	}
	if kept != len(before)-2 { // leaving's container and its sandbox
		t.Errorf("%d of %d containers keep running, want all but two", kept, len(before))
	}
	if st := s.get("probed").Status.ContainerStatuses[0]; st.RestartCount != 0 {
		t.Errorf("the probed container was restarted: %+v", st)
	}
	s.ready("probed")
	t.Logf("engine silent for %.0f s: node NotReady after %.1f s (%s), Ready %.1f s after; nothing restarted; a pod created meanwhile Ready %.1f s later",
		hung.Seconds(), notReady.Seconds(), told, ready.Seconds(), time.Since(asked).Seconds())
}

func (s *space) nodeMessage(name string) string {
	s.Helper()
	node, err := client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	s.must(err)
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady {
			return condition.Message
		}
	}
	return ""
}

// gone returns nil if the API has no such pod.
func (s *space) gone(ctx context.Context, name string) error {
	_, err := client.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("pod %s is there (%v)", name, err)
}

// TestStuckContainer freezes the shim of one container, so that the engine can neither stop nor inspect it. No other
// pod waits for that, not even with an agent that starts meanwhile.
func TestStuckContainer(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	s.create(s.pod("stuck", node, "sleep"))
	s.create(s.pod("beside", node, "sleep"))
	id := containerID(s.ready("stuck"))
	beside := containerID(s.ready("beside"))
	s.allReady(3 * time.Minute)
	thaw := s.freeze(s.shimOf(node, id))
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "stuck", metav1.DeleteOptions{}))
	s.eventually(time.Minute, "the engine asked to stop it", func(ctx context.Context) error {
		out, err := cluster.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+node.Name+"/proxy/debug/pods")
		if err == nil && !strings.Contains(out, "stop-container main") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	s.create(s.pod("one", node, "sleep"))
	began := time.Now()
	s.ready("one")
	first := time.Since(began)
	began = time.Now()
	s.must(node.Process("kubelet").Kill9(t.Context()))
	s.must(node.Process("kubelet").Start(t.Context()))
	s.create(s.pod("two", node, "sleep"))
	s.ready("two")
	second := time.Since(began)
	if now := containerID(s.ready("beside")); now != beside {
		t.Errorf("the pod beside it was restarted: %s, was %s", now, beside)
	}
	began = time.Now()
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "two", metav1.DeleteOptions{}))
	s.eventually(time.Minute, "pod two gone", func(ctx context.Context) error { return s.gone(ctx, "two") })
	third := time.Since(began)
	if err := s.gone(t.Context(), "stuck"); err == nil {
		t.Error("the stuck pod is gone from the API while its container runs")
	}
	thaw()
	freed := s.eventually(3*time.Minute, "pod stuck gone", func(ctx context.Context) error { return s.gone(ctx, "stuck") })
	t.Logf("beside a stuck container a pod is Ready after %.1f s, with a restarted agent after %.1f s, deleted within %.1f s; the stuck pod is gone %.1f s after its container is released",
		first.Seconds(), second.Seconds(), third.Seconds(), freed.Seconds())
}

func containerID(pod *v1.Pod) string {
	return strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "docker://")
}

// TestBehindOurBack removes containers and images of running pods, and occupies the name of a future container.
func TestBehindOurBack(t *testing.T) {
	s := newSpace(t)
	ctx := t.Context()
	node := cluster.Nodes[1]
	engine := node.Engine()
	const image = "winkube/untagged:1"
	s.must(engine.Tag(ctx, lab.SampleImage, image))
	s.Cleanup(func() { _ = engine.RemoveImage(context.Background(), image) })
	for _, name := range []string{"app", "box", "named"} {
		s.create(s.pod(name, node, "sleep"))
	}
	never := s.pod("never", node, "sleep")
	never.Spec.RestartPolicy = v1.RestartPolicyNever
	s.create(never)
	untagged := s.pod("untagged", node, "sleep")
	untagged.Spec.Containers[0].Image = image
	s.create(untagged)
	for _, name := range []string{"app", "box", "named", "never", "untagged"} {
		s.ready(name)
	}
	s.allReady(3 * time.Minute)

	s.must(engine.RemoveImage(ctx, image))
	s.must(engine.Terminate(ctx, containerID(s.get("untagged")))) // its next attempt needs the image
	named := s.get("named")
	squatter := fmt.Sprintf("k8s_main_named_%s_%s_1", s.name, named.UID)
	foreign, err := engine.Run(ctx, squatter, lab.PauseImage)
	s.must(err)
	s.Cleanup(func() { _ = engine.Remove(context.Background(), foreign) })
	sandbox := s.sandboxOf(node, s.get("box"))
	for _, id := range []string{containerID(s.get("app")), containerID(named), containerID(s.get("never")), sandbox} {
		s.must(engine.Remove(ctx, id))
	}
	begin := time.Now()
	s.restarted("app", 1)
	app := time.Since(begin)
	s.restarted("box", 1)
	if now := s.sandboxOf(node, s.get("box")); now == sandbox {
		t.Error("the removed sandbox is there")
	}
	box := time.Since(begin)
	s.eventually(time.Minute, "pod never Failed", func(context.Context) error {
		if pod := s.get("never"); pod.Status.Phase != v1.PodFailed || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			return fmt.Errorf("%s %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
	told := s.waits("named", "CreateContainerError", "is already in use by container")
	s.must(engine.Remove(ctx, foreign))
	s.restarted("named", 1)
	pull := s.waits("untagged", "ImagePullBackOff", image)
	s.must(engine.Tag(ctx, lab.SampleImage, image))
	s.eventually(2*time.Minute, "pod untagged restarted", func(context.Context) error {
		if st := s.get("untagged").Status.ContainerStatuses[0]; st.RestartCount < 1 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	t.Logf("removed manually: container runs again after %.1f s, the pod of a removed sandbox after %.1f s; a taken name: %q; a removed image: %q; both repaired",
		app.Seconds(), box.Seconds(), told, pull)
}

// sandboxOf returns the running infra container of a pod.
func (s *space) sandboxOf(host *lab.Host, pod *v1.Pod) string {
	s.Helper()
	list, err := host.Engine().Containers(context.Background())
	s.must(err)
	for _, c := range list {
		if c.Labels["io.kubernetes.pod.uid"] == string(pod.UID) && c.Labels["io.kubernetes.docker.type"] == "podsandbox" && c.State == "running" {
			return c.ID
		}
	}
	return ""
}

// restarted waits until a pod is Ready and its container has restarted exactly this many times.
func (s *space) restarted(name string, times int32) {
	s.Helper()
	s.eventually(2*time.Minute, fmt.Sprintf("pod %s restarted %d times", name, times), func(context.Context) error {
		pod := s.get(name)
		if st := pod.Status.ContainerStatuses[0]; st.RestartCount != times {
			return fmt.Errorf("%+v", st)
		}
		return isReady(pod)
	})
}

// waits waits until the pod's container reports why it does not start, and returns the message.
func (s *space) waits(name, reason, says string) (message string) {
	s.Helper()
	s.eventually(2*time.Minute, "pod "+name+" waiting", func(context.Context) error {
		st := s.get(name).Status.ContainerStatuses[0]
		if st.State.Waiting == nil || st.State.Waiting.Reason != reason || !strings.Contains(st.State.Waiting.Message, says) {
			return fmt.Errorf("want %s with %q, have %+v %+v", reason, says, st.State.Waiting, st)
		}
		message = st.State.Waiting.Message
		return nil
	})
	return message
}

// TestRemovalFails makes a container's directory undeletable for the engine: the pod is still removed from the API, and
// the rest is removed when possible.
func TestRemovalFails(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[1]
	pod := s.create(s.pod("busy", node, "sleep"))
	id := containerID(s.ready("busy"))
	dir := node.Dir("docker", "containers", id)
	attributes := func(change string) (output.Said, error) { return output.Of(exec.Command("chattr", change, dir)) }
	if out, err := attributes("+i"); err != nil {
		t.Skipf("this host's file system does not support immutable directories: %v %s", err, out)
	}
	t.Cleanup(func() { _, _ = attributes("-i") })
	s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), "busy", metav1.DeleteOptions{}))
	api := s.eventually(time.Minute, "pod busy gone from the API", func(ctx context.Context) error { return s.gone(ctx, "busy") })
	if err := s.nothingOf(t.Context(), node, string(pod.UID)); err == nil {
		t.Error("its container could be removed: the test proves nothing")
	}
	if out, err := attributes("-i"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	rest := s.eventually(60*time.Second, "its container gone", func(ctx context.Context) error { return s.nothingOf(ctx, node, string(pod.UID)) })
	t.Logf("a container that cannot be removed: its pod gone from the API after %.1f s, the container gone %.1f s after it became removable", api.Seconds(), rest.Seconds())
}

// TestNetworkBlip disconnects a node's network for a short time.
func TestNetworkBlip(t *testing.T) {
	s := newSpace(t)
	ctx := context.Background()
	node := cluster.Nodes[1]
	s.create(s.pod("web", node, "serve", "8080"))
	web := s.ready("web")
	s.allReady(3 * time.Minute)
	before := s.snapshot()
	begin := time.Now()
	_, err := node.Exec(ctx, "ip", "link", "set", "eth0", "down")
	s.must(err)
	up := func() { _, _ = node.Exec(ctx, "ip", "link", "set", "eth0", "up") }
	t.Cleanup(up)
	time.Sleep(12 * time.Second) // the blip
	up()
	gone := time.Since(begin)
	s.create(s.pod("after", node, "sleep"))
	begin = time.Now()
	s.eventually(time.Minute, "pod reached from the other host", func(ctx context.Context) error {
		_, err := ask(ctx, cluster.Nodes[0], "http://"+web.Status.PodIP+":8080/")
		return err
	})
	reached := time.Since(begin)
	s.ready("after")
	ready := time.Since(begin)
	for line := range strings.Lines(difference(before, s.snapshot())) {
		if strings.HasPrefix(line, "-") {
			t.Errorf("something was restarted: %s", line)
		}
	}
	t.Logf("node without network for %.1f s: nothing restarted, its pods reached again after %.1f s, a new pod Ready after %.1f s", gone.Seconds(), reached.Seconds(), ready.Seconds())
}
