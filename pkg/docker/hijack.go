package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
)

// hijack is a connection that the engine hands over to a command's streams. The client waits for the engine's answer on it without
// regard to any context; hijack closes it when the context ends.
type hijack struct {
	mu    sync.Mutex
	conn  net.Conn
	ended bool
}

type hijackKey struct{}

// adopt takes the connection as soon as it is dialled.
func (h *hijack) adopt(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn = conn
	if h.ended {
		conn.Close()
	}
}

func (h *hijack) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	if h.conn != nil {
		h.conn.Close()
	}
}

// streams are the caller's ends of a session; nil ones are not wanted.
type streams struct {
	in       io.Reader
	out, err io.Writer
	tty      bool
	resize   <-chan remotecommand.TerminalSize
}

// session is one exec or attach: how it is opened, and how its terminal is resized.
type session struct {
	what   string
	open   func(context.Context, *client.Client) (types.HijackedResponse, error)
	resize func(ctx context.Context, height, width uint) error
}

// run connects the streams and blocks until the output has ended, cannot be delivered, or ctx ends. When it returns, the connection
// is closed and no goroutine of it is left but one that may still wait in s.in.Read, which the caller ends by closing s.in.
func (e *Engine) run(ctx context.Context, session session, s streams) error {
	inner, answered, cancel := e.within(ctx, e.cfg.CallTimeout)
	defer cancel()
	held := &hijack{}
	release := context.AfterFunc(inner, held.end)
	defer release()
	c, err := e.api(inner)
	var conn types.HijackedResponse
	if err == nil {
		conn, err = session.open(context.WithValue(inner, hijackKey{}, held), c)
	}
	if err != nil {
		return e.explain(ctx, inner, session.what, err)
	}
	answered()
	defer conn.Close()
	closed := context.AfterFunc(inner, func() { conn.Close() }) // with TLS the client dials by itself
	defer closed()

	if s.in != nil {
		go func() {
			_, err := io.Copy(conn.Conn, s.in)
			if err != nil && !errors.Is(err, net.ErrClosed) {
				klog.V(4).InfoS("Input of a session ended early", "session", session.what, "reason", err)
			}
			_ = conn.CloseWrite() // the command sees the end of its input, and may go on writing
		}()
	}
	var resizer sync.WaitGroup
	defer resizer.Wait()
	defer cancel()
	if s.tty && s.resize != nil {
		resizer.Go(func() { follow(inner, session, s.resize) })
	}
	if err := receive(conn.Reader, s); err != nil || ctx.Err() != nil {
		return e.explain(ctx, inner, session.what, errors.Join(err, ctx.Err()))
	}
	return nil
}

// receive copies the output to its end. A terminal has one stream; otherwise the engine multiplexes two.
func receive(from io.Reader, s streams) error {
	out, errOut := s.out, s.err
	if out == nil {
		out = io.Discard
	}
	if errOut == nil {
		errOut = io.Discard
	}
	var err error
	if s.tty {
		_, err = io.Copy(out, from)
	} else {
		_, err = stdcopy.StdCopy(out, errOut, from)
	}
	return err
}

// follow resizes the terminal until ctx ends or no more sizes come. A size that cannot be set is not worth a session.
func follow(ctx context.Context, session session, sizes <-chan remotecommand.TerminalSize) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			if size.Height == 0 || size.Width == 0 {
				continue
			}
			if err := session.resize(ctx, uint(size.Height), uint(size.Width)); err != nil {
				klog.V(4).InfoS("Cannot resize a terminal", "session", session.what, "size", fmt.Sprintf("%dx%d", size.Width, size.Height), "reason", err)
			}
		case <-ctx.Done():
			return
		}
	}
}
