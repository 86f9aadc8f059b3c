package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/winkube/winkube/test/lab"
)

// freeCPU returns the CPU of a node that no pod requests, in millicores.
func (s *space) freeCPU(node *lab.Host) int64 {
	s.Helper()
	object, err := client.CoreV1().Nodes().Get(s.Context(), node.Name, metav1.GetOptions{})
	s.must(err)
	free := object.Status.Allocatable.Cpu().MilliValue()
	pods, err := client.CoreV1().Pods("").List(s.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	s.must(err)
	for i := range pods.Items {
		if phase := pods.Items[i].Status.Phase; phase != v1.PodFailed && phase != v1.PodSucceeded {
			requests := helper.PodRequests(&pods.Items[i], helper.PodResourcesOptions{})
			free -= requests.Cpu().MilliValue()
		}
	}
	return free
}

func requestCPU(pod *v1.Pod, milli int64) {
	pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
}

// TestPreemption fills a node, restarts its kubelet, which admits all running pods, and then creates a critical pod.
func TestPreemption(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	filler := s.pod("filler", node, "sleep")
	requestCPU(filler, s.freeCPU(node))
	s.create(filler)
	before := s.ready("filler").Status.ContainerStatuses[0].ContainerID

	late := s.pod("late", node, "sleep")
	late.Spec.NodeName = node.Name // bypasses the scheduler
	requestCPU(late, 100)
	s.create(late)
	refused := func(name, reason string) {
		t.Helper()
		s.eventually(time.Minute, name+" is rejected", func(context.Context) error {
			if status := s.get(name).Status; status.Phase != v1.PodFailed || status.Reason != reason {
				return fmt.Errorf("it is %s %s", status.Phase, status.Reason)
			}
			return nil
		})
		t.Logf("%s: %s", name, s.get(name).Status.Message)
	}
	refused("late", "OutOfcpu")
	s.must(node.Process("kubelet").Kill9(t.Context()))
	s.must(node.Process("kubelet").Start(t.Context()))
	s.nodeReady(node.Name, true, 60*time.Second)
	s.eventually(time.Minute, "the kubelet knows its pods", func(ctx context.Context) error {
		_, err := client.CoreV1().Pods(s.name).GetLogs("filler", &v1.PodLogOptions{}).DoRaw(ctx)
		return err
	})
	if now := s.ready("filler").Status.ContainerStatuses[0].ContainerID; now != before {
		t.Errorf("the container of a full node was replaced after the kubelet's restart: %s, was %s", now, before)
	}

	critical := s.pod("critical", node, "sleep")
	critical.Spec.NodeName, critical.Spec.PriorityClassName = node.Name, "system-node-critical"
	requestCPU(critical, 100)
	begin := time.Now()
	s.create(critical)
	s.ready("critical")
	t.Logf("a critical pod on a full node is Ready after %.1f s", time.Since(begin).Seconds())
	refused("filler", "Preempting")
	condition := v1.PodCondition{}
	for _, c := range s.get("filler").Status.Conditions {
		if c.Type == v1.DisruptionTarget {
			condition = c
		}
	}
	if condition.Status != v1.ConditionTrue || condition.Reason != v1.PodReasonTerminationByKubelet {
		t.Errorf("condition DisruptionTarget of the preempted pod is %+v", condition)
	}
	s.told("filler", "Preempting", "Preempted in order to admit critical pod")
}
