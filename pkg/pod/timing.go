package pod

import (
	"time"

	"github.com/winkube/winkube/pkg/podspec"
)

// Timing records how long work on pods took and how their containers ended, as upstream's metrics. Calls must not block.
type Timing interface {
	// PodSynced counts one piece of work: from its first step until no step runs or remains to start. kind is CreateWork, SyncWork,
	// KillWork or TerminatedWork.
	PodSynced(kind string, took time.Duration)
	// PodStarted counts a pod that has started to run, and the time since it was first seen.
	PodStarted(took time.Duration)
	// ContainerEnded counts each container attempt that ended while this agent ran, once.
	ContainerEnded(kind podspec.Kind, exitCode int, reason string)
}

// Kinds of work on a pod.
const (
	CreateWork     = "create"     // the first start, when the engine had nothing of the pod
	SyncWork       = "sync"       // anything later in its life
	KillWork       = "kill"       // its end, including the time that its containers took to stop
	TerminatedWork = "terminated" // removing what ended
)
