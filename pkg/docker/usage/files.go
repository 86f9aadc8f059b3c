package usage

import (
	"context"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/winkube/winkube/pkg/docker/logs"
)

// Files are what a container has put on this host's disk.
type Files struct {
	Layer    string   // directory of what it has written; "" where the storage driver has none
	Volumes  []string // directories of the volumes that the engine has made for it, as its image wants them
	Mounted  []string // files that the engine puts into it, and that it can write to: /etc/hostname and others
	Logs     uint64   // bytes of all log files, rotated ones too
	LogFiles uint64   // 0: the engine's files are not at hand
}

// fileCache keeps where containers' files lie, which never changes.
type fileCache struct {
	mu    sync.Mutex
	known map[string]*located
}

type located struct {
	layer   string
	volumes []string
	mounted []string
	logs    *logs.Files // nil: not at hand
	idle    int         // calls since it was named
}

// maxIdle is after how many calls that do not name it a container is forgotten: there are several callers, and each names other containers.
const maxIdle = 20

// Files says where containers' files lie, by id. The engine is asked once for each; callers that want sizes walk the directories.
// Containers that are gone are left out. After an error, the result has those that could be found.
func (m *Meter) Files(ctx context.Context, ids []string) (map[string]Files, error) {
	m.files.mu.Lock()
	defer m.files.mu.Unlock()
	for id, at := range m.files.known {
		if at.idle++; at.idle > maxIdle {
			delete(m.files.known, id)
		}
	}
	out := make(map[string]Files, len(ids))
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
		f := Files{Layer: at.layer, Volumes: at.volumes, Mounted: at.mounted}
		if at.logs != nil {
			f.Logs, f.LogFiles = at.logs.Size()
		}
		out[id] = f
	}
	return out, first
}

// locate reads where a container's files lie; nothing is known of an engine elsewhere.
func (m *Meter) locate(in container.InspectResponse) *located {
	at := &located{}
	if m.engine.Local() && in.ContainerJSONBase != nil {
		at.layer = in.GraphDriver.Data["UpperDir"] // overlay2; others mix it with the image
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
