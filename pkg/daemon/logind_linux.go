package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"k8s.io/klog/v2"
)

// Names of systemd-logind on the bus (org.freedesktop.login1(5)).
const (
	loginName    = "org.freedesktop.login1"
	loginPath    = "/org/freedesktop/login1"
	loginManager = "org.freedesktop.login1.Manager"
	prepare      = "PrepareForShutdown"
)

// logind is a connection to systemd-logind that delays a shutdown until it is closed.
type logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal // closed when the connection breaks
	lock    int               // not an os.File, which the garbage collector would close; -1: none
}

// openLogind takes an inhibitor lock that delays the host's shutdown, in the name of who. grace is the wanted delay; if logind allows less, openLogind
// raises it by the file config.
func openLogind(ctx context.Context, address, config, who, why string, grace time.Duration) (*logind, error) {
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("cannot ask systemd-logind to wait before a shutdown: %w", err)
	}
	l := &logind{conn: conn, signals: make(chan *dbus.Signal, 10), lock: -1}
	if err := l.begin(ctx, config, who, why, grace); err != nil {
		l.close()
		return nil, fmt.Errorf("cannot ask systemd-logind to wait before a shutdown: %w", err)
	}
	return l, nil
}

func (l *logind) begin(ctx context.Context, config, who, why string, grace time.Duration) error {
	l.conn.Signal(l.signals)
	if err := l.conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(loginManager), dbus.WithMatchMember(prepare)); err != nil {
		return err
	}
	raiseDelay(ctx, l.conn, config, grace)
	var lock dbus.UnixFD
	if err := l.conn.Object(loginName, loginPath).CallWithContext(ctx, loginManager+".Inhibit", 0, "shutdown", who, why, "delay").Store(&lock); err != nil {
		return fmt.Errorf("cannot take a lock: %w", err)
	}
	l.lock = int(lock)
	return nil
}

// raiseDelay has logind delay a shutdown for at least grace: it writes config and has logind read it again. A delay that is long enough, whoever set it,
// stays. A shorter one that cannot be raised is logged.
func raiseDelay(ctx context.Context, conn *dbus.Conn, config string, grace time.Duration) {
	allowed, err := allowedDelay(conn)
	if err != nil || allowed >= grace {
		return // a logind without the property grants the lock all the same
	}
	if err = writeDelay(config, grace); err == nil {
		err = reloadLogind(ctx, conn)
	}
	if err == nil {
		allowed, err = awaitDelay(ctx, conn, grace)
	}
	switch {
	case err != nil:
		klog.ErrorS(err, "Warning: systemd-logind delays a shutdown for less than --shutdown-grace-period; raise its InhibitDelayMaxSec", "allowed", allowed, "wanted", grace)
	case allowed < grace:
		klog.InfoS("Warning: systemd-logind delays a shutdown for less than --shutdown-grace-period: another file in logind.conf.d sets InhibitDelayMaxSec too",
			"allowed", allowed, "wanted", grace, "ours", config)
	default:
		klog.InfoS("Raised systemd-logind's InhibitDelayMaxSec to --shutdown-grace-period", "allowed", allowed, "file", config)
	}
}

// allowedDelay returns how long logind delays a shutdown at most.
func allowedDelay(conn *dbus.Conn) (time.Duration, error) {
	most, err := conn.Object(loginName, loginPath).GetProperty(loginManager + ".InhibitDelayMaxUSec")
	if err != nil {
		return 0, err
	}
	micros, ok := most.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("InhibitDelayMaxUSec is %v, want a number", most)
	}
	return time.Duration(min(micros, 1<<53)) * time.Microsecond, nil
}

// writeDelay writes the file as a whole.
func writeDelay(config string, grace time.Duration) error {
	if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
		return err
	}
	seconds := (grace + time.Second - 1) / time.Second
	next := config + ".new" // logind reads only names that end in .conf
	if err := os.WriteFile(next, fmt.Appendf(nil, "# Written by kubelet for --shutdown-grace-period; kubelet node leave removes it.\n[Login]\nInhibitDelayMaxSec=%d\n", seconds), 0o644); err != nil {
		return err
	}
	return os.Rename(next, config)
}

// reloadLogind sends logind SIGHUP by systemd, which knows its process (KillUnit in org.freedesktop.systemd1(5)). It keeps sessions and locks.
func reloadLogind(ctx context.Context, conn *dbus.Conn) error {
	manager := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	call := manager.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "all", int32(syscall.SIGHUP))
	if call.Err != nil {
		return fmt.Errorf("cannot have systemd-logind read its configuration again: %w", call.Err)
	}
	return nil
}

// awaitDelay returns the delay that logind allows after a reload: it takes a moment, and logind announces no change of this property.
func awaitDelay(ctx context.Context, conn *dbus.Conn, grace time.Duration) (allowed time.Duration, err error) {
	for range 20 {
		if allowed, err = allowedDelay(conn); err != nil || allowed >= grace {
			return allowed, err
		}
		select {
		case <-ctx.Done():
			return allowed, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return allowed, nil
}

// await returns nil when logind announces a shutdown.
func (l *logind) await() error {
	for signal := range l.signals {
		if signal.Name != loginManager+"."+prepare || len(signal.Body) != 1 {
			continue
		}
		if begins, ok := signal.Body[0].(bool); ok && begins {
			return nil
		}
	}
	return errors.New("the connection to systemd-logind broke")
}

// close lets the shutdown proceed.
func (l *logind) close() {
	_ = l.conn.Close()
	if l.lock >= 0 {
		_ = syscall.Close(l.lock)
	}
}

// logindRetry is the pause before reconnecting to logind.
const logindRetry = 5 * time.Second

// untilLogind ends the context with ErrShutdown when the host shuts down. The shutdown is delayed until the program ends.
func untilLogind(ctx context.Context, address, config, who string, grace time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	try := func() error {
		l, err := openLogind(ctx, address, config, who, "pods end in order", grace)
		if err != nil {
			return err
		}
		if err := l.await(); err != nil {
			l.close()
			return err
		}
		klog.InfoS("The host is shutting down", "grace", grace)
		cancel(ErrShutdown) // the lock is held until the program ends
		return nil
	}
	var watch sync.WaitGroup
	watch.Go(func() {
		told := false
		for {
			err := try()
			if err == nil || ctx.Err() != nil {
				return
			}
			if !told {
				klog.ErrorS(err, "Cannot delay a shutdown of the host; pods will not be ended in order before it, trying again")
				told = true
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(logindRetry):
			}
		}
	})
	return ctx, func() { cancel(context.Canceled); watch.Wait() }
}
