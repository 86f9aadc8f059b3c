package pod

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Rejection says why a pod may not start here or may not go on. The pod's status becomes phase Failed, with upstream's Reason and Message.
type Rejection struct {
	Reason, Message string
	// Disruption is the message of the condition DisruptionTarget, for a pod that ends to make room for others; "": Message.
	Disruption string
	// Preemption, if set, means that the pod is not refused: other pods end to make room. Admit the pod again once one of them is released.
	Preemption *Preemption
	// Ask, if set, means that the pod is not refused yet. Admit it again after Ask returns.
	Ask *Question
}

// Question gathers what an Admitter needs to know. It may block. Another goroutine than the Admitter's calls it.
type Question func(ctx context.Context)

// Preemption names the pods that must end now. An empty list means that enough pods are already ending.
type Preemption struct{ Victims []types.UID }

// Eviction ends an admitted pod to protect the node or other pods. The pod's status is as for a Rejection, with the condition
// DisruptionTarget.
type Eviction struct {
	Rejection
	Grace time.Duration // stop time of its containers, or less if the pod's grace period is shorter; at least one second
	// Annotations are added to the Event.
	Annotations map[string]string
}
