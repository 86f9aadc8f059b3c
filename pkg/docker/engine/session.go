package engine

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

// hijack is a connection that the engine hands over to a command's streams. The client waits for the engine's answer on it regardless of the context;
// hijack closes it when the context ends.
type hijack struct {
	mu    sync.Mutex
	conn  net.Conn
	ended bool
}

type hijackKey struct{}

// adopt stores the connection as soon as it is dialled.
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

// Streams are the caller's ends of a session; nil ones are not connected.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	TTY      bool
	Resize   <-chan remotecommand.TerminalSize
}

// Session is one exec or attach: how to open it, and how to resize its terminal.
type Session struct {
	What   string // completes "cannot ..." in errors
	Open   func(context.Context, *client.Client) (types.HijackedResponse, error)
	Resize func(ctx context.Context, height, width uint) error
}

// Run connects the streams and blocks until the output has ended, cannot be delivered, or ctx ends. When it returns, the connection is closed and
// none of its goroutines is left, except one that may still wait in s.In.Read. The caller ends that one by closing s.In.
func (session Session) Run(ctx context.Context, e *Client, s Streams) error {
	inner, answered, cancel := e.Within(ctx, e.timeout)
	defer cancel()
	held := &hijack{}
	release := context.AfterFunc(inner, held.end)
	defer release()
	c, err := e.API(inner)
	var conn types.HijackedResponse
	if err == nil {
		conn, err = session.Open(context.WithValue(inner, hijackKey{}, held), c)
	}
	if err != nil {
		return e.Explain(ctx, inner, session.What, err)
	}
	answered()
	defer conn.Close()
	closed := context.AfterFunc(inner, func() { conn.Close() }) // with TLS the client dials by itself
	defer closed()

	if s.In != nil {
		go func() { // not awaited: only the caller can end its read, and does so after Run
			_, err := io.Copy(conn.Conn, s.In)
			if err != nil && !errors.Is(err, net.ErrClosed) {
				klog.V(4).InfoS("Input of a session ended early", "session", session.What, "reason", err)
			}
			_ = conn.CloseWrite() // the command sees the end of its input, and may continue to write
		}()
	}
	var resizer sync.WaitGroup
	defer resizer.Wait()
	defer cancel()
	if s.TTY && s.Resize != nil {
		resizer.Go(func() { follow(inner, session, s.Resize) })
	}
	if err := Receive(conn.Reader, s); err != nil || ctx.Err() != nil {
		return e.Explain(ctx, inner, session.What, errors.Join(err, ctx.Err()))
	}
	return nil
}

// Receive copies the engine's output to s.Out and s.Err until it ends. A terminal has one stream; otherwise the engine multiplexes two.
func Receive(from io.Reader, s Streams) error {
	out, errOut := s.Out, s.Err
	if out == nil {
		out = io.Discard
	}
	if errOut == nil {
		errOut = io.Discard
	}
	var err error
	if s.TTY {
		_, err = io.Copy(out, from)
	} else {
		_, err = stdcopy.StdCopy(out, errOut, from)
	}
	return err
}

// follow resizes the terminal until ctx ends or sizes is closed. A failed resize does not end the session.
func follow(ctx context.Context, session Session, sizes <-chan remotecommand.TerminalSize) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			if size.Height == 0 || size.Width == 0 {
				continue
			}
			if err := session.Resize(ctx, uint(size.Height), uint(size.Width)); err != nil {
				klog.V(4).InfoS("Cannot resize a terminal", "session", session.What, "size", fmt.Sprintf("%dx%d", size.Width, size.Height), "reason", err)
			}
		case <-ctx.Done():
			return
		}
	}
}
