package daemon

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/daemon/bustest"
)

// login is a systemd-logind on a bus: it grants one lock and says when the host shuts down. Its methods are those of logind.
type login struct {
	conn  *dbus.Conn
	held  chan *os.File // its end of the lock
	asked chan []string
	lent  int // a copy of the end that was sent
}

// Inhibit is logind's.
func (l *login) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	fd, err := syscall.Dup(int(theirs.Fd()))
	theirs.Close()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.lent = fd
	l.asked <- []string{what, who, why, mode}
	l.held <- ours
	return dbus.UnixFD(fd), nil
}

// properties are logind's.
type properties struct{}

// Get is that of org.freedesktop.DBus.Properties.
func (properties) Get(string, string) (dbus.Variant, *dbus.Error) {
	return dbus.MakeVariant(uint64(5_000_000)), nil
}

func startLogin(t *testing.T, address string) *login {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	l := &login{conn: conn, held: make(chan *os.File, 1), asked: make(chan []string, 1)}
	if err := errors.Join(conn.Export(l, loginPath, loginManager), conn.Export(properties{}, loginPath, "org.freedesktop.DBus.Properties")); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName(loginName, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(reply, err)
	}
	return l
}

// release closes our copy of the sent end: then only the client holds the lock.
func (l *login) release() { _ = syscall.Close(l.lent) }

func (l *login) prepare(t *testing.T, shutdown bool) {
	t.Helper()
	if err := l.conn.Emit(loginPath, loginManager+".PrepareForShutdown", shutdown); err != nil {
		t.Error(err)
	}
}

// lock waits until a lock is granted and returns our end of it.
func (l *login) lock(t *testing.T) *os.File {
	t.Helper()
	select {
	case held := <-l.held:
		t.Cleanup(func() { held.Close() })
		return held
	case <-time.After(time.Minute):
		t.Fatal("no lock was asked for")
		return nil
	}
}

// TestLogind: the lock is requested and held, a canceled shutdown has no effect, a starting one ends the context.
func TestLogind(t *testing.T) {
	address := bustest.Start(t)
	server := startLogin(t, address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	state := klog.CaptureState()
	defer state.Restore()
	klog.LogToStderr(false)
	klog.SetOutput(&out)
	inner, stop := untilLogind(ctx, address, "kubelet", time.Minute)
	held := server.lock(t)
	if asked := <-server.asked; strings.Join(asked, "|") != "shutdown|kubelet|pods end in order|delay" {
		t.Errorf("asked for %q", asked)
	}
	server.prepare(t, false)
	server.prepare(t, true)
	select {
	case <-inner.Done():
	case <-time.After(time.Minute):
		t.Fatal("the context does not end")
	}
	if cause := context.Cause(inner); !errors.Is(cause, ErrShutdown) || ctx.Err() != nil {
		t.Errorf("the context ended by %v", cause)
	}
	stop()
	server.release()
	runtime.GC() // it ends no lock
	_ = held.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := held.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the lock is not held any more: %v", err)
	}
	klog.Flush()
	if !strings.Contains(out.String(), "raise its InhibitDelayMaxSec") {
		t.Errorf("no warning: %s", out.String())
	}
}

// TestLogindLock: closing the connection lets the shutdown go on.
func TestLogindLock(t *testing.T) {
	address := bustest.Start(t)
	server := startLogin(t, address)
	l, err := openLogind(t.Context(), address, "kubelet", "", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	held := server.lock(t)
	server.release()
	l.close()
	_ = held.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := held.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the lock is still held: %v", err)
	}
}

// TestLogindStop: an agent that ends without a shutdown watches no longer.
func TestLogindStop(t *testing.T) {
	address := bustest.Start(t)
	server := startLogin(t, address)
	ctx, stop := untilLogind(t.Context(), address, "kubelet", time.Second)
	server.lock(t)
	stop()
	server.release()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		t.Errorf("the context ended by %v", cause)
	}
}
