package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/winkube/winkube/test/lab"
)

const spacePrefix = "e2e-" // of the names of tests' namespaces

// space is one test's namespace.
type space struct {
	*testing.T
	name string

	mu     sync.Mutex
	errors []string
}

// note keeps an error, to print it once more behind the state of the pods, where it is found.
func (s *space) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors = append(s.errors, text)
}

func (s *space) Error(args ...any) {
	s.Helper()
	s.note(fmt.Sprint(args...))
	s.T.Error(args...)
}

func (s *space) Errorf(format string, args ...any) {
	s.Helper()
	s.note(fmt.Sprintf(format, args...))
	s.T.Errorf(format, args...)
}

func (s *space) Fatal(args ...any) {
	s.Helper()
	s.note(fmt.Sprint(args...))
	s.T.Fatal(args...)
}

func (s *space) Fatalf(format string, args ...any) {
	s.Helper()
	s.note(fmt.Sprintf(format, args...))
	s.T.Fatalf(format, args...)
}

// newSpace creates a namespace and removes it when the test ends, which waits only for what the next test could notice. If
// the test fails, it prints the state of its pods.
func newSpace(t *testing.T) *space {
	t.Helper()
	ctx := t.Context()
	made, err := client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: spacePrefix}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &space{T: t, name: made.Name}
	t.Cleanup(func() {
		if t.Failed() {
			diagnose(t, s.name)
			for _, text := range s.errors {
				t.Logf("failed: %s", text)
			}
		}
		ctx := context.Background()
		s.allRun(ctx)
		if err := client.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		s.empty()
	})
	s.eventually(2*time.Minute, "service account default", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(s.name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

// empty removes the pods and Services of a namespace that is being deleted: its controller takes seconds longer.
func (s *space) empty() {
	s.Helper()
	pods, services := client.CoreV1().Pods(s.name), client.CoreV1().Services(s.name)
	ctx := context.Background()
	s.must(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	served, err := services.List(ctx, metav1.ListOptions{})
	s.must(err)
	for _, service := range served.Items {
		if err := services.Delete(ctx, service.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	}
	s.eventually(3*time.Minute, "pods and Services of "+s.name+" gone", func(ctx context.Context) error {
		left, err := pods.List(ctx, metav1.ListOptions{})
		served, failed := services.List(ctx, metav1.ListOptions{})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		if len(left.Items)+len(served.Items) > 0 {
			return fmt.Errorf("%d pods and %d Services are there", len(left.Items), len(served.Items))
		}
		return nil
	})
}

// namespacesGone waits until no test's namespace is left.
func namespacesGone(ctx context.Context) error {
	var left []string
	err := wait.PollUntilContextTimeout(ctx, 300*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		left = nil
		for _, item := range list.Items {
			if strings.HasPrefix(item.Name, spacePrefix) {
				left = append(left, item.Name)
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("namespaces %q are left: %w", left, err)
	}
	return nil
}

// allRun starts processes that the test left stopped, so that its failure does not make the next test fail.
func (s *space) allRun(ctx context.Context) {
	s.Helper()
	var stopped []string
	for _, host := range cluster.Hosts() {
		for _, name := range host.ProcessNames() {
			revived, err := host.Process(name).Revive(ctx)
			if err != nil {
				s.Error(err)
			}
			if revived {
				stopped = append(stopped, host.Name+" "+name)
			}
		}
	}
	if len(stopped) == 0 {
		return
	}
	if err := cluster.WaitAPIServer(ctx); err != nil {
		s.Error(err)
	}
	for _, node := range cluster.Nodes {
		s.nodeReady(node.Name, true, 60*time.Second)
	}
	if !s.Failed() {
		s.Errorf("the test has left stopped: %q", stopped)
	}
}

// eventually repeats ok until it returns nil, and returns how long that took. It ends the test after patience.
func (s *space) eventually(patience time.Duration, what string, ok func(context.Context) error) time.Duration {
	s.Helper()
	begin := time.Now()
	var last error
	err := wait.PollUntilContextTimeout(context.Background(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // independent of patience, whose end would hide the real error
		defer cancel()
		last = ok(ctx)
		return last == nil, nil
	})
	if err != nil {
		s.Fatalf("%s: not after %s: %v", what, patience, last)
	}
	return time.Since(begin)
}

// pod returns a pod of the sample image on a node.
func (s *space) pod(name string, node *lab.Host, args ...string) *v1.Pod {
	grace := int64(2)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name, Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{
			NodeSelector:                  map[string]string{v1.LabelHostname: node.Name},
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []v1.Container{{Name: "main", Image: lab.SampleImage, Args: args}},
		},
	}
}

func (s *space) create(pod *v1.Pod) *v1.Pod {
	s.Helper()
	made, err := client.CoreV1().Pods(s.name).Create(s.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return made
}

func (s *space) get(name string) *v1.Pod {
	s.Helper()
	pod, err := client.CoreV1().Pods(s.name).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return pod
}

// ready waits until a pod is Ready and returns it.
func (s *space) ready(name string) *v1.Pod {
	s.Helper()
	var pod *v1.Pod
	s.eventually(2*time.Minute, "pod "+name+" Ready", func(ctx context.Context) (err error) {
		if pod, err = client.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return isReady(pod)
	})
	return pod
}

func isReady(pod *v1.Pod) error {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodReady && condition.Status == v1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("pod %s: %s %s %v", pod.Name, pod.Status.Phase, pod.Status.Reason, pod.Status.ContainerStatuses)
}

// service creates a ClusterIP service for the pods with the label app=name and returns its address.
func (s *space) service(name string, port int) string {
	s.Helper()
	made, err := client.CoreV1().Services(s.name).Create(s.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt(port)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return made.Spec.ClusterIP
}

// ask requests a URL from a host's network.
func ask(ctx context.Context, host *lab.Host, url string) (string, error) {
	return host.Exec(ctx, filepath.Join(cluster.Tools, "sample"), "get", url)
}

func (s *space) logs(pod string) string {
	s.Helper()
	data, err := client.CoreV1().Pods(s.name).GetLogs(pod, &v1.PodLogOptions{}).DoRaw(context.Background())
	if err != nil {
		s.Fatalf("logs of %s: %v", pod, err)
	}
	return string(data)
}

// running lists the IDs of all running containers of a host's engine.
func (s *space) running(host *lab.Host) []string {
	s.Helper()
	list, err := host.Engine().Containers(context.Background())
	if err != nil {
		s.Fatal(err)
	}
	var ids []string
	for _, container := range list {
		if container.State == "running" {
			ids = append(ids, container.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// snapshot returns what must not change if nothing should restart: all running containers of both engines and all
// restart counts.
func (s *space) snapshot() string {
	s.Helper()
	var out strings.Builder
	for _, node := range cluster.Nodes {
		fmt.Fprintln(&out, strings.Join(append([]string{node.Name}, s.running(node)...), "\n  "))
	}
	pods, err := client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			fmt.Fprintln(&out, pod.Namespace, pod.Name, pod.UID, status.Name, status.ContainerID, status.RestartCount)
		}
	}
	return out.String()
}

// difference returns the lines that only one of two texts has.
func difference(before, after string) string {
	var out []string
	b, a := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range b {
		if !slices.Contains(a, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range a {
		if !slices.Contains(b, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}

// allReady waits until every pod of the cluster is Ready.
func (s *space) allReady(patience time.Duration) time.Duration {
	s.Helper()
	return s.eventually(patience, "every pod Ready", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if pods.Items[i].Status.Phase == v1.PodSucceeded || pods.Items[i].Status.Phase == v1.PodFailed {
				continue
			}
			if err := isReady(&pods.Items[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func nodeIsReady(ctx context.Context, name string) (bool, error) {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady {
			return condition.Status == v1.ConditionTrue, nil
		}
	}
	return false, nil
}

func (s *space) nodeReady(name string, want bool, patience time.Duration) time.Duration {
	s.Helper()
	return s.eventually(patience, fmt.Sprintf("node %s Ready=%t", name, want), func(ctx context.Context) error {
		ready, err := nodeIsReady(ctx, name)
		if err == nil && ready != want {
			err = fmt.Errorf("it is %t", ready)
		}
		return err
	})
}

// must ends the test on an error.
func (s *space) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// diagnose prints what helps first after a failure.
func diagnose(t *testing.T, namespace string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"get", "nodes,pods", "-A", "-o", "wide"},
		{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
	} {
		out, err := cluster.Kubectl(ctx, args...)
		t.Logf("kubectl %s (%v)\n%s", strings.Join(args, " "), err, out)
	}
	for _, node := range cluster.Nodes {
		for _, name := range []string{"kubelet", "proxy"} {
			t.Logf("log: %s", node.Process(name).Log())
		}
	}
}
