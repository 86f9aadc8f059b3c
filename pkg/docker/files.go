package docker

import (
	"context"
	"net"
	"sync"
)

// Files are where a container's bytes lie on this host.
type Files struct {
	Layer string // directory of what the container has written; "" where the storage driver has none
	Log   string // the newest file of its log, others beside it begin with its name; "" where there is none
}

// fileCache keeps Files, which never change, by container.
type fileCache struct {
	mu    sync.Mutex
	known map[string]Files
}

// Files tells where containers lie, asking the engine once of each. Those that are not named are forgotten; those that are gone are
// left out.
func (e *Engine) Files(ctx context.Context, ids []string) (map[string]Files, error) {
	e.files.mu.Lock()
	defer e.files.mu.Unlock()
	out := make(map[string]Files, len(ids))
	var first error
	for _, id := range ids {
		f, ok := e.files.known[id]
		if !ok {
			in, err := e.inspect(ctx, id)
			switch {
			case gone(err):
				continue
			case err != nil:
				first = err
				continue
			}
			f.Log = in.LogPath
			if in.GraphDriver.Data != nil {
				f.Layer = in.GraphDriver.Data["UpperDir"] // overlay2; others mix it with the image
			}
		}
		out[id] = f
	}
	e.files.known = out
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
