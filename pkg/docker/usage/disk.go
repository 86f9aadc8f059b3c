package usage

import (
	"context"
	"fmt"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// DiskUsage is a container's usage of this host's disk.
type DiskUsage struct {
	Logs     uint64 // bytes of all log files, including rotated ones
	LogFiles uint64
	Writable uint64 // bytes written to its root file system; 0 on Windows
}

// DiskUsage measures a container, running or not. The engine walks the container's writable layer, which takes longer the more files it has, and
// gives no reason if it fails; LogUsage measures only the logs. On Windows the engine would have to activate the layer, even of a running container,
// so it is not asked there. Logs are 0 if the engine's files are not on this host.
func (m *Meter) DiskUsage(ctx context.Context, id string) (DiskUsage, error) {
	if m.os == "windows" {
		return m.LogUsage(ctx, id)
	}
	var in container.InspectResponse
	err := m.engine.Call(ctx, "measure the files of container "+engine.ShortID(id), func(ctx context.Context, c *client.Client) (err error) {
		in, _, err = c.ContainerInspectWithRaw(ctx, id, true)
		return err
	})
	if err != nil || in.ContainerJSONBase == nil {
		return DiskUsage{}, err
	}
	out := m.logUsage(in)
	if in.SizeRw != nil {
		if *in.SizeRw < 0 {
			return out, fmt.Errorf("the engine cannot measure the files of container %s", engine.ShortID(id))
		}
		out.Writable = uint64(*in.SizeRw)
	}
	return out, nil
}

// LogUsage measures only a container's logs; Writable stays 0.
func (m *Meter) LogUsage(ctx context.Context, id string) (DiskUsage, error) {
	in, err := m.engine.Inspect(ctx, id)
	if err != nil {
		return DiskUsage{}, err
	}
	return m.logUsage(in), nil
}

func (m *Meter) logUsage(in container.InspectResponse) (out DiskUsage) {
	if files, ok := m.logs.Locate(in); ok {
		out.Logs, out.LogFiles = files.Size()
	}
	return out
}
