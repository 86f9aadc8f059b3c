package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/lab/check"
)

// TestDeletedRoute deletes a node's route to the other node's pods.
func TestDeletedRoute(t *testing.T) {
	s := newSpace(t)
	ctx := t.Context()
	first, second := cluster.Nodes[0], cluster.Nodes[1]
	node, err := client.CoreV1().Nodes().Get(ctx, second.Name, metav1.GetOptions{})
	s.must(err)
	cidr := node.Spec.PodCIDR
	route := func(ctx context.Context) (string, error) {
		out, err := first.Exec(ctx, "ip", "-4", "route", "show", cidr)
		return strings.TrimSpace(out), err
	}
	before, err := route(ctx)
	s.must(err)
	if !strings.Contains(before, "via "+second.Addr.String()) {
		t.Fatalf("%s has no route to %s: %q", first.Name, cidr, before)
	}
	_, err = first.Exec(ctx, "ip", "route", "del", cidr)
	s.must(err)
	took := s.eventually(time.Minute, "route to "+cidr+" repaired", func(ctx context.Context) error {
		after, err := route(ctx)
		if err == nil && after != before {
			err = fmt.Errorf("got %q, want %q", after, before)
		}
		return err
	})
	t.Logf("deleted route %q repaired after %.3f s", before, took.Seconds())
}

// soon makes a pod be evicted a few seconds after its node is lost; upstream's default is five minutes.
func soon(pod *v1.PodSpec) {
	seconds := int64(3)
	for _, taint := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		pod.Tolerations = append(pod.Tolerations, v1.Toleration{
			Key: taint, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
}

// TestNodeLeaves disconnects a node until its pods are evicted, and reconnects it: evicted pods must end there.
func TestNodeLeaves(t *testing.T) {
	s := newSpace(t)
	ctx := context.Background()
	node := cluster.Nodes[1]
	pod := s.pod("moves", node, "serve", "8080")
	soon(&pod.Spec)
	uid := s.create(pod).UID
	s.ready("moves")
	stays := s.create(s.pod("stays", node, "sleep"))
	stays = s.ready(stays.Name)

	begin := time.Now()
	s.must(node.Process("kubelet").Stop(ctx))
	t.Cleanup(func() {
		s.must(node.Process("kubelet").Start(ctx))
		s.nodeReady(node.Name, true, 60*time.Second)
	})
	silent := s.nodeReady(node.Name, false, 2*time.Minute)
	s.eventually(60*time.Second, "pod moves being evicted", func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(s.name).Get(ctx, "moves", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.DeletionTimestamp == nil {
			return fmt.Errorf("not yet deleted")
		}
		return nil
	})
	evicted := time.Since(begin)
	s.must(node.Process("kubelet").Start(ctx))
	back := s.nodeReady(node.Name, true, 60*time.Second)
	gone := s.eventually(60*time.Second, "the evicted pod ended", func(ctx context.Context) error {
		if _, err := client.CoreV1().Pods(s.name).Get(ctx, "moves", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod is still in the API (%v)", err)
		}
		return s.nothingOf(ctx, node, string(uid))
	})
	if now := s.get("stays"); now.UID != stays.UID || now.Status.ContainerStatuses[0].ContainerID != stays.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the pod named stays was restarted: %v, was %v", now.Status.ContainerStatuses, stays.Status.ContainerStatuses)
	}
	s.ready("stays")
	t.Logf("kubelet silent: NotReady after %.1f s, pod evicted after %.1f s; back: Ready after %.1f s, evicted pod ended %.1f s later, the other pod kept running",
		silent.Seconds(), evicted.Seconds(), back.Seconds(), gone.Seconds())
}

// nothingOf returns nil if the engine has no container of a pod.
func (s *space) nothingOf(ctx context.Context, node *lab.Host, uid string) error {
	list, err := node.Engine().Containers(ctx)
	if err != nil {
		return err
	}
	for _, container := range list {
		if container.Labels["io.kubernetes.pod.uid"] == uid {
			return fmt.Errorf("%s has container %v of it, %s", node.Name, container.Names, container.State)
		}
	}
	return nil
}

// TestNodeDeleted removes a node until the API server has deleted it and its pods, and then reconnects it: it registers
// again, maybe with another pod range, ends the containers of the old pods and works.
func TestNodeDeleted(t *testing.T) {
	s := newSpace(t)
	ctx := context.Background()
	first, node := cluster.Nodes[0], cluster.Nodes[1]
	uid := s.create(s.pod("lost", node, "sleep")).UID
	s.ready("lost")
	old, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	s.must(err)
	t.Cleanup(func() {
		s.must(node.Process("kubelet").Start(ctx))
		s.must(check.Apply(ctx, cluster)) // recreates the samples that were bare pods
		s.allReady(3 * time.Minute)
	})
	s.must(node.Process("kubelet").Stop(ctx))
	s.must(client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}))
	forgotten := s.eventually(4*time.Minute, "its pods removed from the API", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d are there", len(pods.Items))
		}
		return err
	})

	begin := time.Now()
	s.must(node.Process("kubelet").Start(ctx))
	s.eventually(2*time.Minute, "node registered again and Ready", func(ctx context.Context) error {
		ready, err := nodeIsReady(ctx, node.Name)
		if err == nil && !ready {
			err = fmt.Errorf("not Ready")
		}
		return err
	})
	took := time.Since(begin)
	now, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	s.must(err)
	if now.UID == old.UID {
		t.Error("the Node object is the old one")
	}
	s.eventually(time.Minute, "old pod's containers gone", func(ctx context.Context) error { return s.nothingOf(ctx, node, string(uid)) })
	begin = time.Now()
	s.create(s.pod("web", node, "serve", "8080"))
	web := s.ready("web")
	s.eventually(time.Minute, "pod on the new node reached from the other host", func(ctx context.Context) error {
		_, err := ask(ctx, first, "http://"+web.Status.PodIP+":8080/")
		return err
	})
	t.Logf("Node deleted, its pods removed from the API after %.1f s; back: Ready after %.1f s (pod range %s, was %s), old containers gone; a pod Ready and reached after %.1f s",
		forgotten.Seconds(), took.Seconds(), now.Spec.PodCIDR, old.Spec.PodCIDR, time.Since(begin).Seconds())
}
