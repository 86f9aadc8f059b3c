package main

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const namespace = "bench"

// pods creates and removes pods through the API server, bound to a node at creation so that the scheduler is not measured.
type pods struct {
	client kubernetes.Interface
	node   string
	image  string
}

// make describes a pod; probed gives it a readiness probe by HTTP with the API's default times.
func (p *pods) make(name string, probed bool) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": "bench"}},
		Spec: v1.PodSpec{
			NodeName:                      p.node,
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			AutomountServiceAccountToken:  ptr.To(true),
			Containers:                    []v1.Container{{Name: "web", Image: p.image, Args: []string{"serve", "8080"}, ImagePullPolicy: v1.PullNever}},
		},
	}
	if probed {
		pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}}}
	}
	return pod
}

// name is that of the i-th pod of a run.
func (p *pods) name(prefix string, i int) string { return fmt.Sprintf("%s-%s-%d", prefix, p.node, i) }

// run creates the pods at once and waits until all are Ready; the durations are counted from the common begin.
func (p *pods) run(ctx context.Context, prefix string, n int, probed bool) (durations, error) {
	watcher, err := p.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=bench", FieldSelector: "spec.nodeName=" + p.node})
	if err != nil {
		return nil, err
	}
	defer watcher.Stop()
	begin := time.Now()
	faults := make(chan error, n)
	for i := range n {
		go func() {
			_, err := p.client.CoreV1().Pods(namespace).Create(ctx, p.make(p.name(prefix, i), probed), metav1.CreateOptions{})
			faults <- err
		}()
	}
	ready := map[string]bool{}
	var all durations
	for created := 0; len(all) < n; {
		select {
		case err := <-faults:
			if err != nil {
				return nil, err
			}
			created++
		case event, open := <-watcher.ResultChan():
			pod, ok := event.Object.(*v1.Pod)
			if !open || !ok {
				return nil, fmt.Errorf("the watch of pods ended: %v", event.Object)
			}
			if isReady(pod) && !ready[pod.Name] {
				ready[pod.Name] = true
				all = append(all, inMS(time.Since(begin)))
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d pods created, %d Ready: %w", created, n, len(all), ctx.Err())
		}
	}
	return all, nil
}

// remove deletes every pod of the bench on the node, waits until the last is gone and returns the milliseconds that it took.
func (p *pods) remove(ctx context.Context) (took float64, err error) {
	list, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=bench", FieldSelector: "spec.nodeName=" + p.node})
	if err != nil || len(list.Items) == 0 {
		return 0, err
	}
	watcher, err := p.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=bench", FieldSelector: "spec.nodeName=" + p.node, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	begin := time.Now()
	if err := p.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=bench", FieldSelector: "spec.nodeName=" + p.node}); err != nil {
		return 0, err
	}
	for left := len(list.Items); left > 0; {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return 0, fmt.Errorf("the watch of pods ended with %d pods left", left)
			}
			if event.Type == watch.Deleted {
				left--
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("%d pods left: %w", left, ctx.Err())
		}
	}
	return inMS(time.Since(begin)), nil
}

func isReady(pod *v1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodReady {
			return condition.Status == v1.ConditionTrue
		}
	}
	return false
}
