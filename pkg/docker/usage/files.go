package usage

import (
	"context"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/winkube/winkube/pkg/docker/logs"
)

// Files are the locations and sizes of a container's files on this host.
type Files struct {
	Layer    string   // writable directory; "" if the storage driver has none
	Volumes  []string // directories of anonymous volumes that the engine created because the image declares them
	Mounted  []string // files that the engine mounts into it, and that it can write to: /etc/hostname and others
	Logs     uint64   // bytes of all log files, including rotated ones
	LogFiles uint64   // 0: the engine's files are not accessible
}

// fileCache caches the locations of containers' files, which never change.
type fileCache struct {
	mu    sync.Mutex
	known map[string]*located
}

type located struct {
	layer   string
	volumes []string
	mounted []string
	logs    *logs.Files // nil: not accessible
	idle    int         // calls since it was last requested
}

// maxIdle is the number of calls without a container after which it is dropped: there are several callers, each with different containers.
const maxIdle = 20

// Files returns the locations of containers' files, by id. It queries the engine once for each container; callers that need sizes walk the
// directories. It omits missing containers. After an error, the result has the containers that were found.
func (m *Meter) Files(ctx context.Context, ids []string) (map[string]Files, error) {
	m.files.mu.Lock()
	defer m.files.mu.Unlock()
	for id, at := range m.files.known {
		if at.idle++; at.idle > maxIdle {
			delete(m.files.known, id)
		}
	}
	out := make(map[string]Files, len(ids))
	layer := m.layers()
	var first error
	for _, id := range ids {
		at := m.files.known[id]
		if at == nil {
			in, err := m.engine.Inspect(ctx, id)
			if err != nil {
				if !cerrdefs.IsNotFound(err) && first == nil {
					first = err
				}
				continue
			}
			at = m.locate(in)
			m.files.known[id] = at
		}
		at.idle = 0
		if at.layer == "" {
			at.layer = layer(id) // a stopped container has none yet
		}
		f := Files{Layer: at.layer, Volumes: at.volumes, Mounted: at.mounted}
		if at.logs != nil {
			f.Logs, f.LogFiles = at.logs.Size()
		}
		out[id] = f
	}
	return out, first
}

// locate reads the locations of a container's files; they are unknown if the engine is remote.
func (m *Meter) locate(in container.InspectResponse) *located {
	at := &located{}
	if m.engine.Local() && in.ContainerJSONBase != nil {
		at.layer = in.GraphDriver.Data["UpperDir"] // overlay2; other drivers mix it with the image, and the engine does not report containerd's
		for _, mounted := range in.Mounts {
			if mounted.Type == mount.TypeVolume && mounted.Source != "" && (mounted.Driver == "" || mounted.Driver == "local") {
				at.volumes = append(at.volumes, mounted.Source)
			}
		}
		for _, path := range []string{in.HostnamePath, in.HostsPath, in.ResolvConfPath} {
			if path != "" {
				at.mounted = append(at.mounted, path)
			}
		}
	}
	if logs, ok := m.logs.Locate(in); ok {
		at.logs = &logs
	}
	return at
}
