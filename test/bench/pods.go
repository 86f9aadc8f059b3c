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
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
)

const namespace = "bench"

// pods creates and removes pods through the API server, already bound to a node so that the scheduler is not measured.
type pods struct {
	client kubernetes.Interface
	node   string
	image  string
	// claims are those of pods that have volumes, by the pods' names.
	claims map[string][]string
}

// make returns a pod; probed adds an HTTP readiness probe with the API's default times.
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
	main := &pod.Spec.Containers[0]
	for i, claim := range p.claims[name] {
		volume := fmt.Sprintf("v%d", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: volume, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		main.VolumeMounts = append(main.VolumeMounts, v1.VolumeMount{Name: volume, MountPath: "/" + volume})
	}
	return pod
}

// name returns the name of the i-th pod of a run.
func (p *pods) name(prefix string, i int) string { return fmt.Sprintf("%s-%s-%d", prefix, p.node, i) }

// options select the bench's pods on the node.
func (p *pods) options() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "app=bench", FieldSelector: "spec.nodeName=" + p.node}
}

// follow lists the bench's pods on the node and watches later changes; it resumes watches that the API server ends.
func (p *pods) follow(ctx context.Context) (*v1.PodList, watch.Interface, error) {
	list, err := p.client.CoreV1().Pods(namespace).List(ctx, p.options())
	if err != nil {
		return nil, nil, err
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			of := p.options()
			of.ResourceVersion, of.AllowWatchBookmarks = options.ResourceVersion, options.AllowWatchBookmarks
			return p.client.CoreV1().Pods(namespace).Watch(ctx, of)
		},
	})
	return list, watcher, err
}

// run creates the pods together and waits until all are Ready; durations count from the common start.
func (p *pods) run(ctx context.Context, prefix string, n int, probed bool) (durations, error) {
	_, watcher, err := p.follow(ctx)
	if err != nil {
		return nil, err
	}
	defer watcher.Stop()
	begin := time.Now()
	faults := make(chan error, n)
	waiting := map[string]bool{}
	for i := range n {
		pod := p.make(p.name(prefix, i), probed)
		waiting[pod.Name] = true
		go func() {
			_, err := p.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			faults <- err
		}()
	}
	var all durations
	for len(waiting) > 0 {
		select {
		case err := <-faults:
			if err != nil {
				return nil, err
			}
		case event, open := <-watcher.ResultChan():
			pod, ok := event.Object.(*v1.Pod)
			if !open || !ok {
				return nil, fmt.Errorf("the watch on pods ended: %v", event.Object)
			}
			if waiting[pod.Name] && isReady(pod) {
				delete(waiting, pod.Name)
				all = append(all, inMS(time.Since(begin)))
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d pods Ready: %w", len(all), n, ctx.Err())
		}
	}
	return all, nil
}

// remove deletes the bench's pods on the node, waits until all are gone and returns the time in milliseconds.
func (p *pods) remove(ctx context.Context) (took float64, err error) {
	list, watcher, err := p.follow(ctx)
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	begin := time.Now()
	if err := p.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, p.options()); err != nil {
		return 0, err
	}
	for left := len(list.Items); left > 0; {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return 0, fmt.Errorf("the watch on pods ended with %d pods left", left)
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
