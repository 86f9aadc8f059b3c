package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// startBus runs the real message bus for the test.
func startBus(t *testing.T) (socket string) {
	t.Helper()
	program := "/usr/bin/dbus-daemon"
	if _, err := os.Stat(program); err != nil {
		t.Skipf("needs a message bus: %v", err)
	}
	dir, err := os.MkdirTemp("", "bus") // short: it is a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, []byte(strings.Replace(busConfig, "SOCKET", socket, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	process, err := os.StartProcess(program, []string{program, "--config-file=" + config, "--nofork", "--nopidfile", "--print-address"},
		&os.ProcAttr{Files: []*os.File{nil, write, os.Stderr}})
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Kill()
		_, _ = process.Wait()
	})
	_ = read.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := read.Read(make([]byte, 100)); err != nil { // it prints when it listens
		t.Fatal(err)
	}
	return socket
}

// login is a systemd-logind on a bus: it grants one lock and says when the host shuts down.
type login struct {
	*logind
	t     *testing.T
	held  *os.File // its end of the lock
	asked chan []string
}

func startLogin(t *testing.T, socket string) *login {
	t.Helper()
	conn, err := dialBus(socket)
	if err != nil {
		t.Fatal(err)
	}
	l := &login{logind: &logind{conn: conn}, t: t, asked: make(chan []string, 1)}
	if err := l.authenticate(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.call(busName, busPath, busName, "Hello"); err != nil {
		t.Fatal(err)
	}
	body, _ := texts(loginName)
	l.send(message{kind: busCall, target: busName, path: busPath, iface: busName, member: "RequestName", signature: "su", body: binary.LittleEndian.AppendUint32(pad(body, 4), 0)}, nil)
	for {
		m, err := l.receive()
		if err != nil {
			t.Fatal(err)
		}
		if m.kind == busReply {
			return l
		}
	}
}

func (l *login) send(m message, file *os.File) {
	l.serial++
	m.serial = l.serial
	var control []byte
	if file != nil {
		control = syscall.UnixRights(int(file.Fd()))
	}
	if _, _, err := l.conn.(unixBus).WriteMsgUnix(m.encode(), control, nil); err != nil && !errors.Is(err, net.ErrClosed) {
		l.t.Error(err)
	}
}

// serve answers until the lock is granted.
func (l *login) serve() {
	for {
		m, err := l.receive()
		if err != nil {
			l.t.Error(err)
			return
		}
		answer := message{kind: busReply, target: m.sender, replyTo: m.serial}
		switch m.member {
		case "Get":
			answer.signature = "v"
			answer.body = binary.LittleEndian.AppendUint64([]byte{1, 't', 0, 0, 0, 0, 0, 0}, 5_000_000)
			l.send(answer, nil)
		case "Inhibit":
			r := reader{m.body, 0, m.order, false}
			l.asked <- []string{r.text(), r.text(), r.text(), r.text()}
			ours, theirs, err := os.Pipe()
			if err != nil {
				l.t.Error(err)
				return
			}
			l.held = ours
			answer.signature, answer.files, answer.body = "h", 1, []byte{0, 0, 0, 0}
			l.send(answer, theirs)
			theirs.Close()
			return
		}
	}
}

func (l *login) prepare(shutdown uint32) {
	l.send(message{kind: busSignal, path: loginPath, iface: loginManager, member: "PrepareForShutdown", signature: "b",
		body: binary.LittleEndian.AppendUint32(nil, shutdown)}, nil)
}

// TestLogind: the lock is asked for and held, a shutdown that is called off means nothing, one that begins ends the context.
func TestLogind(t *testing.T) {
	socket := startBus(t)
	server := startLogin(t, socket)
	defer server.close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	state := klog.CaptureState()
	defer state.Restore()
	klog.LogToStderr(false)
	klog.SetOutput(&out)
	inner := untilLogind(ctx, func() (busConn, error) { return dialBus(socket) }, "kubelet", time.Minute)
	server.serve()
	if asked := <-server.asked; strings.Join(asked, "|") != "shutdown|kubelet|pods end in order|delay" {
		t.Errorf("asked for %q", asked)
	}
	server.prepare(0)
	server.prepare(1)
	select {
	case <-inner.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the context does not end")
	}
	if cause := context.Cause(inner); !errors.Is(cause, ErrShutdown) || ctx.Err() != nil {
		t.Errorf("the context ended by %v", cause)
	}
	_ = server.held.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := server.held.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the lock is not held any more: %v", err)
	}
	klog.Flush()
	if !strings.Contains(out.String(), "InhibitDelayMaxSec would have to be raised") {
		t.Errorf("nobody is warned: %s", out.String())
	}
}

// TestLogindLock: who gives up lets the shutdown go on.
func TestLogindLock(t *testing.T) {
	socket := startBus(t)
	server := startLogin(t, socket)
	defer server.close()
	served := make(chan struct{})
	go func() { server.serve(); close(served) }()
	conn, err := dialBus(socket)
	if err != nil {
		t.Fatal(err)
	}
	l, err := openLogind(conn, "kubelet", "", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	<-served
	l.close()
	_ = server.held.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := server.held.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the lock is still held: %v", err)
	}
}
