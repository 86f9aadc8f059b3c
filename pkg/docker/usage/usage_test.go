package usage

import (
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
)

func TestUsageOf(t *testing.T) {
	stats := func(procs uint32, memory container.MemoryStats) (s container.StatsResponse) {
		s.NumProcs, s.MemoryStats = procs, memory
		s.CPUStats.CPUUsage.TotalUsage = 50
		return s
	}
	for name, test := range map[string]struct {
		in   container.StatsResponse
		want Usage
	}{
		"windows":  {stats(4, container.MemoryStats{Commit: 30, PrivateWorkingSet: 20}), Usage{5 * time.Microsecond, 30, 20}},
		"v1":       {stats(0, container.MemoryStats{Usage: 30, Stats: map[string]uint64{"total_inactive_file": 10, "inactive_file": 5}}), Usage{50, 30, 20}},
		"v2":       {stats(0, container.MemoryStats{Usage: 30, Stats: map[string]uint64{"inactive_file": 10}}), Usage{50, 30, 20}},
		"all idle": {stats(0, container.MemoryStats{Usage: 30, Stats: map[string]uint64{"inactive_file": 40}}), Usage{50, 30, 0}},
	} {
		if got := usageOf(test.in); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}
