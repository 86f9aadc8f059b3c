package pod

import (
	"time"

	"github.com/winkube/winkube/pkg/podspec"
)

// Timing records how long work on pods took and how their containers ended, under the names of upstream's metrics. Calls must not block.
type Timing interface {
	// PodSynced counts one piece of work: from its first step until no step was under way and none was to be begun. kind is CreateWork,
	// SyncWork, KillWork or TerminatedWork.
	PodSynced(kind string, took time.Duration)
	// PodStarted counts a pod that has begun to run, and how long after it was first seen.
	PodStarted(took time.Duration)
	// ContainerEnded counts an attempt of a container that ended while this agent ran, once each.
	ContainerEnded(kind podspec.Kind, exitCode int, reason string)
}

// Kinds of work on a pod.
const (
	CreateWork     = "create"     // the first, when the engine had nothing of it
	SyncWork       = "sync"       // what came later in its life
	KillWork       = "kill"       // its end, with the time that its containers took to end
	TerminatedWork = "terminated" // taking away what ended
)
