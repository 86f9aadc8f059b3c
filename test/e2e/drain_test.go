package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// TestDrain drains a node as an administrator does, under traffic: its pods move one after the other, as their
// disruption budget requires, the service stays available, and pods that return to the node run there.
func TestDrain(t *testing.T) {
	s := newSpace(t)
	drained, other := cluster.Nodes[1], cluster.Nodes[0]
	kubectl := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if out, err := cluster.Kubectl(ctx, args...); err != nil {
			t.Fatalf("kubectl %q: %v\n%s", args, err, out)
		}
	}
	open := func() { kubectl("uncordon", drained.Name, other.Name) }
	t.Cleanup(open)

	kubectl("cordon", other.Name)
	web := s.pod("web", drained, "serve", "8080").Spec
	web.NodeSelector = nil
	web.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(8080)}}}
	labels := map[string]string{"app": "web"}
	_, err := client.AppsV1().Deployments(s.name).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: web}},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = client.PolicyV1().PodDisruptionBudgets(s.name).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	s.must(err)
	ready := func(want int, node string) (uids []string) {
		s.eventually(3*time.Minute, fmt.Sprintf("%d pods Ready on %s", want, node), func(ctx context.Context) error {
			list, err := client.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				return err
			}
			uids = nil
			for i := range list.Items {
				if pod := &list.Items[i]; pod.Spec.NodeName == node && isReady(pod) == nil {
					uids = append(uids, string(pod.UID))
				}
			}
			if len(uids) != want || len(list.Items) != want {
				return fmt.Errorf("%d of %d are", len(uids), len(list.Items))
			}
			return nil
		})
		return uids
	}
	first := ready(2, drained.Name)
	tr := &traffic{s, "http://" + s.service("web", 8080) + "/"}
	for _, node := range cluster.Nodes {
		s.eventually(time.Minute, "service from "+node.Name, func(ctx context.Context) error {
			_, err := ask(ctx, node, tr.url)
			return err
		})
	}
	open()

	var took time.Duration
	longest, seen := tr.during(15*time.Second, func() {
		begin := time.Now()
		kubectl("drain", drained.Name, "--pod-selector=app=web", "--ignore-daemonsets", "--timeout=4m")
		took = time.Since(begin)
	})
	if longest > time.Second {
		t.Errorf("the service was silent for %s, want at most a second:\n%s", longest, seen)
	}
	if moved := ready(2, other.Name); slices.Contains(first, moved[0]) || slices.Contains(first, moved[1]) {
		t.Errorf("pods %q are those from before, %q", moved, first)
	}
	for _, uid := range first {
		s.eventually(time.Minute, "no traces of pod "+uid, func(ctx context.Context) error { return s.nothingOf(ctx, drained, uid) })
	}
	kubectl("uncordon", drained.Name)
	s.create(s.pod("after", drained, "sleep"))
	s.ready("after")
	t.Logf("drained in %.1f s, service silent for at most %.3f s; after uncordon the node runs pods again", took.Seconds(), longest.Seconds())
}
