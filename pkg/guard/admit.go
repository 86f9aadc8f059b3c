package guard

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// messageCondition is what a pod is told that comes while the node is short of something, in upstream's words.
const messageCondition = "The node had condition: %v. "

// Admitter asks inner about the pods that the node's conditions let in.
func (g *Guard) Admitter(inner pod.Admitter) pod.Admitter { return &gate{inner, g.Conditions} }

type gate struct {
	pod.Admitter
	conditions func() []v1.NodeConditionType
}

// Admit implements pod.Admitter.
func (a *gate) Admit(p *v1.Pod) *pod.Rejection {
	if conditions := a.conditions(); !welcome(p, conditions) {
		return &pod.Rejection{Reason: reason, Message: fmt.Sprintf(messageCondition, conditions)}
	}
	return a.Admitter.Admit(p)
}

// welcome says whether p may start on a node in these conditions. Critical pods always may; when memory is short so may those that request
// some, and others that tolerate it; else nobody. (upstream: eviction manager's Admit)
func welcome(p *v1.Pod, conditions []v1.NodeConditionType) bool {
	switch {
	case len(conditions) == 0, podspec.Critical(p):
		return true
	case !slices.Equal(conditions, []v1.NodeConditionType{v1.NodeMemoryPressure}):
		return false
	case podspec.QOSOf(p) != v1.PodQOSBestEffort:
		return true
	}
	taint := v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
	return corev1.TolerationsTolerateTaint(klog.Background(), p.Spec.Tolerations, &taint, false)
}
