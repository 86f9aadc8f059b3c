package kubelet

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker"
)

// engineFaults reports what is wrong with the engine as Events of the Node: each fault once, and again when it was gone in between.
type engineFaults struct {
	driver string // cgroup driver in the configuration; "": none
	tell   func(kind, reason, message string)

	mu    sync.Mutex
	known map[docker.Fault]bool
}

func newEngineFaults(cfg Config, events events) *engineFaults {
	f := &engineFaults{tell: events.NodeEvent}
	if cfg.Cgroups != nil {
		f.driver = cfg.Cgroups.Driver
	}
	return f
}

// look compares the engine's answer with the last one.
func (e *engineFaults) look(info docker.Info, err error) {
	faults := docker.Faults(info, err, e.driver)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil && len(faults) == 0 {
		return // it is away, so nothing is known
	}
	last := e.known
	e.known = map[docker.Fault]bool{}
	for _, f := range faults {
		e.known[f] = true
		if !last[f] {
			klog.InfoS("Warning: "+f.What, "fix", f.Fix)
			e.tell(v1.EventTypeWarning, f.Reason, f.What+"; "+f.Fix)
		}
	}
}
