package plan

import (
	"time"

	"github.com/winkube/winkube/pkg/pod"
)

// DeadLimits are which containers that have ended are kept although nothing but `kubectl logs` needs them. A nil one is upstream's defaults.
type DeadLimits struct {
	PerContainer int           // beside the attempt that runs, or that ended last; negative: all (maximum-dead-containers-per-container)
	Total        int           // on the node; negative: no limit (maximum-dead-containers)
	MinAge       time.Duration // none goes sooner after its end (minimum-container-ttl-duration)
}

var defaultDead = DeadLimits{PerContainer: 1, Total: -1}

// OrDefault is d, or upstream's defaults where d is nil.
func (d *DeadLimits) OrDefault() DeadLimits {
	if d == nil {
		return defaultDead
	}
	return *d
}

// Young says that a container ended too short a time ago to go.
func (d DeadLimits) Young(c pod.Container, now time.Time) bool {
	return now.Sub(c.FinishedAt) < d.MinAge
}
