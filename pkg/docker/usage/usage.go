// Package usage measures containers' use of this host: processor, memory and disk, and the locations of their files.
//
//	id --Files (queried once)--> directories;   id --Usage, DiskUsage--> the engine's current measurement
package usage

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/logs"
)

// Logs returns the location of a container's log; false: it is not in files on this host.
type Logs interface {
	Locate(in container.InspectResponse) (logs.Files, bool)
}

// Meter measures one engine's containers. All methods may be called concurrently.
type Meter struct {
	engine *engine.Client
	logs   Logs
	os     string // of the containers
	files  fileCache
	mounts func() (string, error) // this host's mount table
	exists func(file string) bool // on this host
	store  atomic.Pointer[string] // see ImageRoot; nil: unknown
}

// New returns a Meter of e, whose containers are of system os: linux or windows.
func New(e *engine.Client, l Logs, os string) *Meter {
	return &Meter{engine: e, logs: l, os: os, files: fileCache{known: map[string]*located{}}, mounts: mounts, exists: exists}
}

// Usage is the usage of a running container, as its engine measured it just now.
type Usage struct {
	CPU                time.Duration // since its start
	Memory, WorkingSet uint64        // bytes
}

// usageTimeout is short: late figures are useless.
const usageTimeout = 5 * time.Second

// Usage queries the engine once. Use it only if containers cannot be measured otherwise: on Linux their cgroups are much cheaper.
func (m *Meter) Usage(ctx context.Context, id string) (Usage, error) {
	var out Usage
	err := m.engine.CallWithin(ctx, usageTimeout, "measure container "+engine.ShortID(id), func(ctx context.Context, c *client.Client) error {
		answer, err := c.ContainerStatsOneShot(ctx, id)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var stats container.StatsResponse
		if err := json.NewDecoder(answer.Body).Decode(&stats); err != nil {
			return err
		}
		out = usageOf(stats)
		return nil
	})
	return out, err
}

// usageOf recognizes an answer from Windows by its count of processors. There, times are in units of 100 ns, and memory is only that of the
// container's processes.
func usageOf(stats container.StatsResponse) Usage {
	if stats.NumProcs > 0 {
		memory := stats.MemoryStats
		return Usage{CPU: time.Duration(stats.CPUStats.CPUUsage.TotalUsage) * 100, Memory: memory.Commit, WorkingSet: memory.PrivateWorkingSet}
	}
	memory := stats.MemoryStats
	inactive, v1 := memory.Stats["total_inactive_file"]
	if !v1 {
		inactive = memory.Stats["inactive_file"]
	}
	return Usage{CPU: time.Duration(stats.CPUStats.CPUUsage.TotalUsage), Memory: memory.Usage, WorkingSet: memory.Usage - min(memory.Usage, inactive)}
}
