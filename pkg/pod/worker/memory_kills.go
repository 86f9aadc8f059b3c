package worker

import (
	"slices"

	"github.com/winkube/winkube/pkg/pod"
)

// memoryKills knows which containers the kernel has killed for lack of memory although the engine does not report it: with cgroup v2, an engine may
// miss that if the container ends at the same moment (containerd's issue 8893). The kernel counts such kills in the pod's cgroup.
type memoryKills struct {
	based bool
	count uint64 // as last read
	of    map[string]bool
}

// sigkilled is the exit code of a container that a SIGKILL has ended.
const sigkilled = 137

// mark returns containers, with OOMKilled set for those that were killed. ended are those that have exited since the last call. read returns the kernel's
// count; known is false without one. A container that exited before the first call keeps what the engine says.
func (k *memoryKills) mark(containers, ended []pod.Container, read func() (kills uint64, known bool)) []pod.Container {
	if !k.based {
		k.based, k.of = true, map[string]bool{}
		if len(containers) > 0 {
			k.count, _ = read()
		}
	}
	for _, c := range ended {
		if c.ExitCode != sigkilled {
			continue
		}
		if now, known := read(); known {
			if now > k.count && !c.OOMKilled {
				k.of[c.ID] = true
			}
			k.count = now
		}
	}
	if len(k.of) == 0 {
		return containers
	}
	out, left := slices.Clone(containers), map[string]bool{}
	for i := range out {
		if k.of[out[i].ID] {
			out[i].OOMKilled, left[out[i].ID] = true, true
		}
	}
	k.of = left
	return out
}
