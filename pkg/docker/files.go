package docker

import (
	"context"
	"net"
	"sync"
)

// Files are what a container has put on this host's disk.
type Files struct {
	Layer    string // directory of what it has written; "" where the storage driver has none
	Logs     uint64 // bytes of all log files, rotated ones too
	LogFiles uint64 // 0: the engine's files are not at hand
}

// fileCache keeps where containers' files lie, which never changes.
type fileCache struct {
	mu    sync.Mutex
	known map[string]located
}

type located struct {
	layer string
	logs  *logFiles // nil: not at hand
}

// Files tells of running containers what DiskUsage does, without the engine, which is asked once of each: who wants the figures often
// walks the layers himself. Containers that are not named are forgotten; those that are gone are left out.
func (e *Engine) Files(ctx context.Context, ids []string) (map[string]Files, error) {
	e.files.mu.Lock()
	defer e.files.mu.Unlock()
	known, out := make(map[string]located, len(ids)), make(map[string]Files, len(ids))
	var first error
	for _, id := range ids {
		at, ok := e.files.known[id]
		if !ok {
			in, err := e.inspect(ctx, id)
			if err != nil {
				if !gone(err) && first == nil {
					first = err
				}
				continue
			}
			if e.local() {
				at.layer = in.GraphDriver.Data["UpperDir"] // overlay2; others mix it with the image
			}
			if logs, ok := e.logFiles(in); ok {
				at.logs = &logs
			}
		}
		known[id] = at
		f := Files{Layer: at.layer}
		if at.logs != nil {
			f.Logs, f.LogFiles = at.logs.size()
		}
		out[id] = f
	}
	e.files.known = known
	return out, first
}

// PID is the engine's process; 0 before the first call of it, or where its socket does not tell.
func (e *Engine) PID() int { return int(e.pid.Load()) }

// met notes who is at the other end of a connection.
func (e *Engine) met(conn net.Conn) {
	if pid := serverPID(conn); pid > 1 { // 1 holds sockets for others
		e.pid.Store(int64(pid))
	}
}
