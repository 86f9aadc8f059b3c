package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
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

// properties are logind's. InhibitDelayMaxUSec is what the file config said when logind read it last, or logind's default; "later" is a file that
// overrides it.
type properties struct {
	config string
	later  bool
	mu     sync.Mutex
	micros uint64
}

// Get is that of org.freedesktop.DBus.Properties.
func (p *properties) Get(string, string) (dbus.Variant, *dbus.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return dbus.MakeVariant(p.micros), nil
}

// KillUnit is systemd's. logind reads its configuration when SIGHUP arrives.
func (p *properties) KillUnit(unit, whom string, signal int32) *dbus.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, err := os.ReadFile(p.config)
	_, value, found := strings.Cut(string(text), "\n[Login]\nInhibitDelayMaxSec=")
	seconds, bad := strconv.ParseUint(strings.TrimSuffix(value, "\n"), 10, 32)
	if unit != "systemd-logind.service" || whom != "all" || signal != 1 || !found || errors.Join(err, bad) != nil {
		return dbus.MakeFailedError(fmt.Errorf("%s %s %d with %q: %v, %v", unit, whom, signal, text, err, bad))
	}
	if !p.later {
		p.micros = seconds * 1_000_000
	}
	return nil
}

func startLogin(t *testing.T, address string, p *properties) *login {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	l := &login{conn: conn, held: make(chan *os.File, 1), asked: make(chan []string, 1)}
	if err := errors.Join(conn.Export(l, loginPath, loginManager), conn.Export(p, loginPath, "org.freedesktop.DBus.Properties"),
		conn.Export(p, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{loginName, "org.freedesktop.systemd1"} {
		if reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
			t.Fatal(reply, err)
		}
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
	server := startLogin(t, address, &properties{micros: 5_000_000})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	inner, stop := untilLogind(ctx, address, "", "kubelet", time.Second)
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
}

// TestLogindDelay: a delay that is shorter than the grace period is raised by a file; one that is long enough is not touched, and what cannot be raised is
// said.
func TestLogindDelay(t *testing.T) {
	for name, c := range map[string]struct {
		allowed time.Duration
		grace   time.Duration
		blocked bool // the directory cannot be made
		later   bool
		file    string
		says    string
	}{
		"raised":     {allowed: 5 * time.Second, grace: 60 * time.Second, file: "InhibitDelayMaxSec=60", says: "Raised systemd-logind's InhibitDelayMaxSec"},
		"rounded up": {allowed: 5 * time.Second, grace: 5100 * time.Millisecond, file: "InhibitDelayMaxSec=6", says: "Raised"},
		"enough":     {allowed: 5 * time.Second, grace: 5 * time.Second},
		"overridden": {allowed: 5 * time.Second, grace: 60 * time.Second, later: true, file: "InhibitDelayMaxSec=60", says: "another file in logind.conf.d"},
		"read-only":  {allowed: 5 * time.Second, grace: 60 * time.Second, blocked: true, says: "raise its InhibitDelayMaxSec"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "logind.conf.d")
			if c.blocked {
				if err := os.WriteFile(dir, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			config := filepath.Join(dir, "99-winkube.conf")
			address := bustest.Start(t)
			server := startLogin(t, address, &properties{config: config, later: c.later, micros: uint64(c.allowed.Microseconds())})
			said := logged(t, func() {
				l, err := openLogind(t.Context(), address, config, "kubelet", "", c.grace)
				if err != nil {
					t.Fatal(err)
				}
				defer l.close()
				server.lock(t)
				server.release()
			})
			text, err := os.ReadFile(config)
			if (c.file == "") != (err != nil) || !strings.Contains(string(text), c.file) {
				t.Errorf("the file is %q, %v; want %q", text, err, c.file)
			}
			if !strings.Contains(said, c.says) || (c.says == "") != (said == "") {
				t.Errorf("said %q, want %q", said, c.says)
			}
		})
	}
}

// logged returns what do logs.
func logged(t *testing.T, do func()) string {
	t.Helper()
	var out strings.Builder
	state := klog.CaptureState()
	defer state.Restore()
	klog.LogToStderr(false)
	klog.SetOutput(&out)
	do()
	klog.Flush()
	return out.String()
}

// TestLogindLock: closing the connection lets the shutdown go on.
func TestLogindLock(t *testing.T) {
	address := bustest.Start(t)
	server := startLogin(t, address, &properties{micros: 5_000_000})
	l, err := openLogind(t.Context(), address, "", "kubelet", "", time.Second)
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
	server := startLogin(t, address, &properties{micros: 5_000_000})
	ctx, stop := untilLogind(t.Context(), address, "", "kubelet", time.Second)
	server.lock(t)
	stop()
	server.release()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		t.Errorf("the context ended by %v", cause)
	}
}
