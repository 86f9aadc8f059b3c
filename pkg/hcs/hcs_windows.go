package hcs

import (
	"fmt"
	"time"

	"github.com/Microsoft/hcsshim"
)

// Measure reads the figures of the container with that id of the engine, in milliseconds. One that does not run is an error.
var Measure = measure

func measure(id string) (Statistics, error) {
	container, err := hcsshim.OpenContainer(id)
	if err != nil {
		return Statistics{}, fmt.Errorf("cannot find container %s in the Host Compute Service: %w", id, err)
	}
	defer container.Close()
	s, err := container.Statistics()
	if err != nil {
		return Statistics{}, fmt.Errorf("cannot measure container %s: %w", id, err)
	}
	const tick = 100 * time.Nanosecond
	out := Statistics{CPU: time.Duration(s.Processor.TotalRuntime100ns) * tick, Commit: s.Memory.UsageCommitBytes, PrivateWorkingSet: s.Memory.UsagePrivateWorkingSetBytes}
	for _, n := range s.Network {
		out.Endpoints = append(out.Endpoints, Endpoint{n.EndpointId, n.BytesReceived, n.BytesSent, n.DroppedPacketsIncoming, n.DroppedPacketsOutgoing})
	}
	return out, nil
}
