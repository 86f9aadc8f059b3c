package pod

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Rejection says why a pod may not start here, or not go on. It ends on the pod: phase Failed, Reason and Message as upstream has them.
type Rejection struct {
	Reason, Message string
	// Disruption is the message of the condition DisruptionTarget where a pod ends for the good of others; "": Message.
	Disruption string
	// Preemption says that the pod is not refused: others end to make room for it. It is to be admitted again when one was released.
	Preemption *Preemption
	// Ask says that the pod is not refused yet: it is to be admitted again when that has returned.
	Ask *Question
}

// Question finds out what an Admitter has to know. It may block, and is called by another goroutine than the Admitter's.
type Question func(ctx context.Context)

// Preemption is who has to end from now on. None: others are ending already.
type Preemption struct{ Victims []types.UID }

// Eviction ends a pod that was let in, for the good of the node or of other pods. It ends on the pod as a Rejection does, with condition
// DisruptionTarget.
type Eviction struct {
	Rejection
	Grace time.Duration // so long its containers get to stop, or less where the pod says less; at least a second
	// Annotations go on the Event.
	Annotations map[string]string
}
