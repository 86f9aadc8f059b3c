package plan

import (
	"time"

	"github.com/winkube/winkube/pkg/pod"
)

// DeadLimits are the limits for exited containers that only `kubectl logs` needs. A nil *DeadLimits means upstream's defaults.
type DeadLimits struct {
	PerContainer int           // besides the running or last attempt; negative: all (maximum-dead-containers-per-container)
	Total        int           // on the node; negative: no limit (maximum-dead-containers)
	MinAge       time.Duration // minimum time between exit and removal (minimum-container-ttl-duration)
}

var defaultDead = DeadLimits{PerContainer: 1, Total: -1}

// OrDefault returns d, or upstream's defaults if d is nil.
func (d *DeadLimits) OrDefault() DeadLimits {
	if d == nil {
		return defaultDead
	}
	return *d
}

// Young reports whether a container exited too recently to be removed.
func (d DeadLimits) Young(c pod.Container, now time.Time) bool {
	return now.Sub(c.FinishedAt) < d.MinAge
}
