package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"

	//lint:ignore SA1019 the dialers of client-go are still of this package
	"k8s.io/apimachinery/pkg/util/httpstream"
)

// dialects are the protocols that real clients use to run commands.
var dialects = []struct {
	name     string
	stdinEnd bool // the client can signal the end of stdin
	executor func(config *rest.Config, address *url.URL) (remotecommand.Executor, error)
}{
	{"SPDY", true, func(config *rest.Config, address *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, "POST", address)
	}},
	{"WebSocket v5", true, func(config *rest.Config, address *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, "GET", address.String())
	}},
	{"WebSocket v4", false, func(config *rest.Config, address *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(config, "GET", address.String(), "v4.channel.k8s.io")
	}},
}

// session is one command of a client.
type session struct {
	who            string // "": root
	path           string // exec/default/web/main
	command        []string
	stdin          io.Reader
	stdout, stderr io.Writer
	tty            bool
	sizes          remotecommand.TerminalSizeQueue
}

func (s session) url(r *rig) *url.URL {
	query := url.Values{"command": s.command}
	for name, wanted := range map[string]bool{"input": s.stdin != nil, "output": s.stdout != nil, "error": s.stderr != nil, "tty": s.tty} {
		if wanted {
			query.Set(name, "1")
		}
	}
	return &url.URL{Scheme: "https", Host: r.server.Addr().String(), Path: "/" + s.path, RawQuery: query.Encode()}
}

func (s session) run(ctx context.Context, r *rig, dialect int) error {
	executor, err := dialects[dialect].executor(r.as(cmp.Or(s.who, "root")), s.url(r))
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr, Tty: s.tty, TerminalSizeQueue: s.sizes})
}

func each(t *testing.T, test func(t *testing.T, r *rig, dialect int)) {
	for i, dialect := range dialects {
		t.Run(dialect.name, func(t *testing.T) {
			t.Parallel()
			test(t, newRig(t, nil), i)
		})
	}
}

func TestExec(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		var out, errs bytes.Buffer
		if err := (session{path: "exec/default/web/main", command: []string{"both"}, stdout: &out, stderr: &errs}).run(t.Context(), r, dialect); err != nil {
			t.Fatal(err)
		}
		if out.String() != "to stdout\n" || errs.String() != "to stderr\n" {
			t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
		}
		if err := (session{path: "exec/default/web/uid-web/main", command: []string{"nostreams"}, stdout: &out}).run(t.Context(), r, dialect); err != nil {
			t.Errorf("with UID: %v", err)
		}
	})
}

// TestExecNeedsCreate: the right to get nodes/proxy does not allow commands, also not over a WebSocket, which starts with GET. The right to
// create it does, with every protocol.
func TestExecNeedsCreate(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		for _, verb := range []string{"get", "create"} {
			r.api.tokens[verb+"-token"], r.api.rules[verb] = verb, []string{verb + " proxy"}
			for _, path := range []string{"exec/default/web/main", "attach/default/web/main"} {
				var out bytes.Buffer
				one := session{who: "token:" + verb + "-token", path: path, stdout: &out}
				if strings.HasPrefix(path, "exec") {
					one.command = []string{"both"}
				}
				err := one.run(t.Context(), r, dialect)
				if allowed := verb == "create"; allowed && (err != nil || out.Len() == 0) || !allowed && (err == nil || out.Len() > 0) {
					t.Errorf("%s with the right to %s nodes/proxy: %v, %q", path, verb, err, out.String())
				}
			}
		}
	})
}

func TestExecExitCode(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		for _, code := range []int{1, 42, 255} {
			var out bytes.Buffer
			err := session{path: "exec/default/web/main", command: []string{"exit", fmt.Sprint(code)}, stdout: &out}.run(t.Context(), r, dialect)
			var exit utilexec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != code {
				t.Errorf("exit code: got %v, want %d", err, code)
			}
		}
		var out bytes.Buffer
		err := session{path: "exec/default/web/main", command: []string{"fail"}, stdout: &out}.run(t.Context(), r, dialect)
		if err == nil || !strings.Contains(err.Error(), "error executing command in container: the engine is out of order") {
			t.Errorf("engine's error: got %v", err)
		}
	})
}

func TestExecStdin(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		text := strings.Repeat("a line of the input\n", 20000)
		commands := []string{fmt.Sprintf("take %d", len(text))}
		if dialects[dialect].stdinEnd {
			commands = append(commands, "cat") // ends when stdin does
		}
		for _, command := range append(commands, "take 100000") { // leaves the rest unread
			want := text
			if command == "take 100000" {
				want = text[:100000]
			}
			var out bytes.Buffer
			err := session{path: "exec/default/web/main", command: strings.Fields(command), stdin: strings.NewReader(text), stdout: &out}.run(t.Context(), r, dialect)
			if err != nil || out.String() != want {
				t.Errorf("%s gave back %d of %d bytes: %v", command, out.Len(), len(want), err)
			}
		}
	})
}

type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func TestExecResize(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		queue := make(sizes, 2)
		queue <- remotecommand.TerminalSize{Width: 80, Height: 24}
		queue <- remotecommand.TerminalSize{Width: 132, Height: 50}
		defer close(queue)
		var out bytes.Buffer
		if err := (session{path: "exec/default/web/tty", command: []string{"sizes"}, stdout: &out, tty: true, sizes: queue}).run(t.Context(), r, dialect); err != nil {
			t.Fatal(err)
		}
		if want := "80x24 tty=true\n132x50 tty=true\n"; out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	})
}

// signalling reports the arrival of the first byte.
type signalling struct {
	once  sync.Once
	first chan struct{}
}

func (s *signalling) Write(p []byte) (int, error) {
	if len(p) > 0 {
		s.once.Do(func() { close(s.first) })
	}
	return len(p), nil
}

func TestClientGone(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		ctx, leave := context.WithCancel(t.Context())
		out := &signalling{first: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			done <- session{path: "exec/default/web/main", command: []string{"hang"}, stdout: out}.run(ctx, r, dialect)
		}()
		<-out.first
		leave()
		if err := <-done; err == nil {
			t.Error("the client saw a good end")
		}
		if ended := <-r.engine.ended; ended != "hang: context canceled" {
			t.Errorf("the engine's call ended with %q", ended)
		}
	})
}

func TestServerStopsStreams(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		out := &signalling{first: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			done <- session{path: "exec/default/web/main", command: []string{"hang"}, stdout: out}.run(context.Background(), r, dialect)
		}()
		<-out.first
		r.stop()
		<-done
		if n := r.engine.running(); n != 0 {
			t.Errorf("%d calls of the engine outlive the server", n)
		}
	})
}

// comparing compares a long output with pattern without storing it.
type comparing struct {
	n     int64
	wrong bool
}

func (c *comparing) Write(p []byte) (int, error) {
	for _, b := range p {
		c.wrong = c.wrong || b != byte(c.n%251)
		c.n++
	}
	return len(p), nil
}

func TestExecBigOutput(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		const size = 251 * 16000 // 4 MB
		var out comparing
		if err := (session{path: "exec/default/web/main", command: []string{"bytes", fmt.Sprint(size)}, stdout: &out}).run(t.Context(), r, dialect); err != nil {
			t.Fatal(err)
		}
		if out.n != size || out.wrong {
			t.Errorf("got %d of %d bytes, wrong: %t", out.n, size, out.wrong)
		}
	})
}

func TestExec100(t *testing.T) {
	r := newRig(t, nil)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			text := fmt.Sprintf("number %d", i)
			var out bytes.Buffer
			err := session{path: "exec/default/web/main", command: []string{"echo", text}, stdout: &out}.run(t.Context(), r, i%len(dialects))
			if err != nil || out.String() != text+"\n" {
				t.Errorf("%d: %v, %q", i, err, out.String())
			}
		})
	}
	all.Wait()
	if n := strings.Count(r.api.log(), "root create proxy"); n != 1 {
		t.Errorf("the API server was asked %d times for the same permission", n)
	}
}

func TestAttach(t *testing.T) {
	each(t, func(t *testing.T, r *rig, dialect int) {
		for _, container := range []string{"main", "tty"} {
			var out, errs bytes.Buffer
			// The client requests no terminal; tty's terminal is determined by its container.
			err := session{path: "attach/default/web/" + container, stdout: &out, stderr: &errs}.run(t.Context(), r, dialect)
			if err != nil || out.String() != "attached to id-"+container+"\n" {
				t.Errorf("%s: %v, %q", container, err, out.String())
			}
		}
	})
}

func TestStreamErrors(t *testing.T) {
	r := newRig(t, nil)
	for _, test := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"POST", "/exec/default/web/main?command=ls", 400, "you must specify at least 1 of stdin, stdout, stderr"},
		{"POST", "/exec/default/web/main?output=1", 400, "command is not given, want at least one"},
		{"POST", "/exec/default/web/main?output=1&command=ls", 400, "Upgrade request required"},
		{"POST", "/exec/default/nothing/main?output=1&command=ls", 404, "pod does not exist"},
		{"POST", "/exec/other/web/main?output=1&command=ls", 404, "pod does not exist"},
		{"POST", "/exec/default/web/uid-other/main?output=1&command=ls", 404, "pod does not exist"},
		{"POST", "/exec/default/web/setup?output=1&command=ls", 500, `container not found ("setup")`},
		{"POST", "/exec/default/web/nothing?output=1&command=ls", 500, `container not found ("nothing")`},
		{"POST", "/attach/default/web/main", 400, "you must specify at least 1 of stdin, stdout, stderr"},
		{"POST", "/attach/default/web/nothing?output=1", 500, "container nothing not found in pod web_default"},
		{"POST", "/attach/default/nothing/main?output=1", 404, "pod does not exist"},
		{"POST", "/portForward/default/web", 400, "Upgrade request required"},
		{"POST", "/portForward/default/nothing", 404, "pod does not exist"},
		{"POST", "/portForward/default/web/uid-other", 404, "pod does not exist"},
		{"POST", "/portForward/default/waiting", 500, `pod not found ("waiting_default")`},
		{"POST", "/run/default/web/main?cmd=echo+a+b", 200, "a b\n"},
		{"POST", "/run/default/web/uid-web/main?cmd=both", 200, "to stdout\nto stderr\n"},
		{"POST", "/run/default/web/main?cmd=exit+3", 500, "wrapped: exit 3"},
		{"POST", "/run/default/web/setup?cmd=ls", 500, `container not found ("setup")`},
		{"POST", "/run/default/nothing/main?cmd=ls", 404, "pod does not exist"},
	} {
		status, body := r.get(test.method, test.path, "")
		if status != test.status || body != test.body {
			t.Errorf("%s %s: got %d %q, want %d %q", test.method, test.path, status, body, test.status, test.body)
		}
	}
}

func TestRunKeepsTheFirstOutput(t *testing.T) {
	r := newRig(t, nil)
	status, body := r.get("POST", fmt.Sprintf("/run/default/web/main?cmd=bytes+%d", runOutput+1000), "")
	if status != 200 || len(body) != runOutput {
		t.Errorf("got %d and %d bytes, want 200 and %d", status, len(body), runOutput)
	}
}

// echoServer echoes every line and, at the end of the input, answers "bye".
func echoServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
				_, _ = io.WriteString(conn, "bye")
			}()
		}
	}()
	return listener.Addr().String()
}

func TestPortForward(t *testing.T) {
	for name, dialer := range map[string]func(config *rest.Config, address *url.URL) (httpstream.Dialer, error){
		"SPDY": func(config *rest.Config, address *url.URL) (httpstream.Dialer, error) {
			transport, upgrader, err := spdy.RoundTripperFor(config)
			return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", address), err
		},
		"tunnel": func(config *rest.Config, address *url.URL) (httpstream.Dialer, error) {
			return portforward.NewSPDYOverWebsocketDialer(address, config)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPortForward(t, dialer)
		})
	}
}

func testPortForward(t *testing.T, dialer func(*rest.Config, *url.URL) (httpstream.Dialer, error)) {
	r := newRig(t, nil)
	echo := echoServer(t)
	open := make(chan net.Conn, 100)
	r.engine.dial = func(ctx context.Context, id string, port int) (net.Conn, error) {
		if port != 80 {
			return nil, fmt.Errorf("connection refused on port %d", port)
		}
		conn, err := net.Dial("tcp", echo)
		if err == nil {
			open <- conn
		}
		return conn, err
	}
	dial, err := dialer(r.as("root"), &url.URL{Scheme: "https", Host: r.server.Addr().String(), Path: "/portForward/default/web"})
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	var messages safeBuffer
	forward, err := portforward.NewOnAddresses(dial, []string{"127.0.0.1"}, []string{"0:80", "0:81"}, stop, ready, io.Discard, &messages)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- forward.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := forward.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			text := strings.Repeat(fmt.Sprintf("%d,", i), 50000)
			got, err := talk(ports[0].Local, text)
			if err != nil || got != text+"bye" {
				t.Errorf("%d: %v, %d bytes back", i, err, len(got))
			}
		})
	}
	all.Wait()
	held, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := io.WriteString(held, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(held, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	close(open)
	for conn := range open { // every connection into the pod ends with the client
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection into the pod is still open")
		}
	}
}

func talk(port uint16, text string) (string, error) {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	go func() {
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	return string(got), err
}

func TestPortForwardRefused(t *testing.T) {
	r := newRig(t, nil)
	opened := make(chan struct{}) // a faster failure may reach the client before the answer to its second stream
	r.engine.dial = func(context.Context, string, int) (net.Conn, error) {
		<-opened
		return nil, errors.New("connection refused")
	}
	transport, upgrader, err := spdy.RoundTripperFor(r.as("root"))
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST",
		&url.URL{Scheme: "https", Host: r.server.Addr().String(), Path: "/portForward/default/web/uid-web"}).Dial("portforward.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	header := http.Header{"Port": {"80"}, "Requestid": {"0"}}
	header.Set("streamType", "error")
	errorStream, err := conn.CreateStream(header)
	if err != nil {
		t.Fatal(err)
	}
	header.Set("streamType", "data")
	if _, err := conn.CreateStream(header); err != nil {
		t.Fatal(err)
	}
	close(opened)
	message, err := io.ReadAll(errorStream)
	if want := "error forwarding port 80 to pod web, uid uid-web: connection refused"; string(message) != want {
		t.Errorf("got %q (%v), want %q", message, err, want)
	}
}
