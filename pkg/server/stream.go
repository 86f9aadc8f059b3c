package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

// runOutput is the maximum output of a command that /run returns.
const runOutput = 16 << 20

// command is one exec or attach, bound to its container. Both streaming implementations call it.
type command struct {
	attach bool
	run    func(ctx context.Context, io streams) error
}

// streams are the streams that a client opened; the others are nil.
type streams struct {
	in       io.Reader
	out, err io.WriteCloser
	resize   <-chan remotecommand.TerminalSize
}

func (s *Server) serveExec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		plain(w, http.StatusBadRequest, err.Error())
		return
	}
	cmd := r.URL.Query()["command"]
	if len(cmd) == 0 {
		plain(w, http.StatusBadRequest, "command is not given, want at least one")
		return
	}
	ref, ok := s.lookup(w, r)
	if !ok {
		return
	}
	if ref.ContainerID == "" {
		plain(w, http.StatusInternalServerError, fmt.Sprintf("container not found (%q)", r.PathValue("container")))
		return
	}
	s.serveCommand(w, r, options, command{run: func(ctx context.Context, io streams) error {
		return s.parts.Engine.Exec(ctx, ref.ContainerID, cmd, io.in, io.out, io.err, options.TTY, io.resize)
	}})
}

func (s *Server) serveAttach(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		plain(w, http.StatusBadRequest, err.Error())
		return
	}
	ref, ok := s.lookup(w, r)
	if !ok {
		return
	}
	name := r.PathValue("container")
	spec := containerSpec(ref.Pod, name)
	if spec == nil || ref.ContainerID == "" {
		plain(w, http.StatusInternalServerError, fmt.Sprintf("container %s not found in pod %s_%s", name, ref.Pod.Name, ref.Pod.Namespace))
		return
	}
	s.serveCommand(w, r, options, command{attach: true, run: func(ctx context.Context, io streams) error {
		// The container's spec determines whether there is a terminal; the client only guesses.
		if spec.TTY {
			io.err = nil
		}
		return s.parts.Engine.Attach(ctx, ref.ContainerID, io.in, io.out, io.err, spec.TTY, io.resize)
	}})
}

// serveCommand upgrades the connection to the client's protocol and runs run on its streams.
func (s *Server) serveCommand(w http.ResponseWriter, r *http.Request, options *remotecommand.Options, run command) {
	s.upgrade(w, r, func(w http.ResponseWriter, r *http.Request) {
		idle, creation, protocols := s.config.StreamIdleTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols
		switch {
		case wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
			serveCommandV5(w, r, options, idle, run)
		case run.attach:
			remotecommand.ServeAttach(w, r, executor{options, run}, "", "", "", options, idle, creation, protocols)
		default:
			remotecommand.ServeExec(w, r, executor{options, run}, "", "", "", nil, options, idle, creation, protocols)
		}
	})
}

// executor adapts a command to the streaming library. Its parameters are already bound.
type executor struct {
	options *remotecommand.Options
	command command
}

func (e executor) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, err io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	return e.command.start(ctx, e.options, streams{in, out, err, resize})
}

func (e executor) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, err io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize) error {
	return e.command.start(ctx, e.options, streams{in, out, err, resize})
}

// start runs c with nil for each stream that was not requested. It returns an exit code as a bare ExitError, which the library expects.
func (c command) start(ctx context.Context, options *remotecommand.Options, io streams) error {
	if !options.Stdin {
		io.in = nil
	}
	if !options.Stdout {
		io.out = nil
	}
	if !options.Stderr {
		io.err = nil
	}
	err := c.run(ctx, io)
	var exit utilexec.ExitError
	if errors.As(err, &exit) {
		return exit
	}
	return err
}

// serveRun runs a command without streams and answers with its output. (An older path, for tools; the command is split at blanks.)
func (s *Server) serveRun(w http.ResponseWriter, r *http.Request) {
	ref, ok := s.lookup(w, r)
	if !ok {
		return
	}
	if ref.ContainerID == "" {
		plain(w, http.StatusInternalServerError, fmt.Sprintf("container not found (%q)", r.PathValue("container")))
		return
	}
	var long *http.MaxBytesError
	if err := r.ParseForm(); errors.As(err, &long) {
		plain(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes\n", long.Limit))
		return
	}
	var output limitedBuffer
	cmd := strings.Split(r.FormValue("cmd"), " ")
	if err := s.parts.Engine.Exec(r.Context(), ref.ContainerID, cmd, nil, &output, &output, false, nil); err != nil {
		plain(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json") // as upstream does, whatever the command wrote
	_, _ = w.Write(output.buffer.Bytes())
}

// limitedBuffer keeps the first runOutput bytes and discards the rest, so that the command does not block.
type limitedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buffer.Write(p[:min(len(p), runOutput-b.buffer.Len())])
	return len(p), nil
}

func (b *limitedBuffer) Close() error { return nil }

func (s *Server) servePortForward(w http.ResponseWriter, r *http.Request) {
	tunnel := wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	options := &portforward.V4Options{}
	if !tunnel {
		var err error
		if options, err = portforward.NewV4Options(r); err != nil {
			plain(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	ref, ok := s.lookup(w, r)
	if !ok {
		return
	}
	if ref.NetworkID == "" {
		plain(w, http.StatusInternalServerError, fmt.Sprintf("pod not found (%q)", ref.Pod.Name+"_"+ref.Pod.Namespace))
		return
	}
	s.upgrade(w, r, func(w http.ResponseWriter, r *http.Request) {
		if tunnel {
			if w, r = tunnelled(w, r); w == nil {
				return
			}
		}
		portforward.ServePortForward(w, r, forwarder{r.Context(), s.parts.Engine, ref}, ref.Pod.Name, string(ref.Pod.UID), options,
			s.config.StreamIdleTimeout, remotecommand.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
	})
}

// forwarder adapts Engine.Dial to the streaming library, which passes no context that ends with the client.
type forwarder struct {
	ctx    context.Context
	engine Engine
	ref    Ref
}

func (f forwarder) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := f.engine.Dial(f.ctx, f.ref.NetworkID, f.ref.PodIPs, int(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(f.ctx, func() { _ = conn.Close() })
	defer stop()
	go func() { // ends with the stream, which the library closes after us
		_, _ = io.Copy(conn, stream)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	if _, err := io.Copy(stream, conn); err != nil && f.ctx.Err() == nil {
		return err
	}
	return nil
}

// upgrade runs serve on a connection that leaves HTTP. The request's context ends when the client disconnects, which net/http does not notice on a
// hijacked connection, and when the server stops.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request)) {
	if !httpstream.IsUpgradeRequest(r) {
		plain(w, http.StatusBadRequest, "Upgrade request required")
		return
	}
	s.streams.Add(1)
	defer s.streams.Done()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	h := &hijacker{ResponseWriter: w, life: s.life, gone: cancel}
	defer func() {
		if h.release != nil {
			h.release()
		}
	}()
	serve(h, r.WithContext(ctx))
}

// hijacker returns a connection that reports the end of reading. It deliberately has no Unwrap: the libraries would bypass it.
type hijacker struct {
	http.ResponseWriter
	life    context.Context
	gone    context.CancelFunc
	release func() bool
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // data that net/http has already read
	watched := &watchedConn{Conn: conn, early: bytes.NewReader(bytes.Clone(early)), gone: h.gone}
	h.release = context.AfterFunc(h.life, func() { _ = conn.Close() })
	return watched, bufio.NewReadWriter(bufio.NewReader(watched), bufio.NewWriter(watched)), nil
}

// watchedConn calls gone when reading fails or it is closed: when the client disconnects, at a timeout, or at SPDY's GOAWAY, after which the library
// stops reading.
type watchedConn struct {
	net.Conn
	early  *bytes.Reader
	gone   func()
	closed atomic.Bool
}

func (c *watchedConn) Read(p []byte) (int, error) {
	if c.early.Len() > 0 {
		return c.early.Read(p)
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.gone()
	}
	return n, err
}

// Close ends the sending side, and closes the connection when the client does, or after lingerTime. Closing immediately with unread data, such as
// input that the command ignored, would reset the connection, and the client would lose output in transit.
func (c *watchedConn) Close() error {
	c.gone()
	secure, ok := c.Conn.(*tls.Conn)
	if !ok || !c.closed.CompareAndSwap(false, true) {
		return c.Conn.Close()
	}
	_ = secure.CloseWrite()
	if tcp, ok := secure.NetConn().(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	_ = secure.SetReadDeadline(time.Now().Add(lingerTime))
	go func() { // ends after lingerTime at the latest, and Close must not wait for that
		_, _ = io.Copy(io.Discard, secure.NetConn())
		_ = secure.Close()
	}()
	return nil
}
