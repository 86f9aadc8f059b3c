package guard

import (
	"fmt"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// messageCondition is the rejection message for a pod that arrives while the node is under pressure, in upstream's
// words.
const messageCondition = "The node had condition: %v. "

// Pressure holds what the node is short of. It is separate from the Guard, which finds it, because admission and the
// Node's status need it before there are pods that a Guard could evict. The zero value is no pressure. Safe for
// concurrent use.
type Pressure struct {
	conditions atomic.Pointer[[]v1.NodeConditionType]
}

// Conditions returns the conditions that are true, sorted: of MemoryPressure, DiskPressure and PIDPressure.
func (p *Pressure) Conditions() []v1.NodeConditionType {
	if c := p.conditions.Load(); c != nil {
		return *c
	}
	return nil
}

// Admitter rejects pods that the node's conditions forbid, and passes others to inner.
func (p *Pressure) Admitter(inner pod.Admitter) pod.Admitter { return &gate{inner, p} }

type gate struct {
	pod.Admitter
	pressure *Pressure
}

// Admit implements pod.Admitter.
func (a *gate) Admit(p *v1.Pod) *pod.Rejection {
	if conditions := a.pressure.Conditions(); !welcome(p, conditions) {
		return &pod.Rejection{Reason: reason, Message: fmt.Sprintf(messageCondition, conditions)}
	}
	return a.Admitter.Admit(p)
}

// welcome reports whether p may start on a node with these conditions. Critical pods always may. If only memory is
// short, so may pods that request some and pods that tolerate the taint. No other pod may. (upstream: eviction
// manager's Admit)
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
