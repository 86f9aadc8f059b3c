package daemon

import (
	"context"
	"errors"
	"fmt"
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

// openLogind takes an inhibitor lock that delays the host's shutdown, in the name of who. grace is the wanted delay; logind allows
// InhibitDelayMaxSec, and openLogind warns if that is less.
func openLogind(ctx context.Context, address, who, why string, grace time.Duration) (*logind, error) {
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("cannot ask systemd-logind to wait before a shutdown: %w", err)
	}
	l := &logind{conn: conn, signals: make(chan *dbus.Signal, 10), lock: -1}
	if err := l.begin(ctx, who, why, grace); err != nil {
		l.close()
		return nil, fmt.Errorf("cannot ask systemd-logind to wait before a shutdown: %w", err)
	}
	return l, nil
}

func (l *logind) begin(ctx context.Context, who, why string, grace time.Duration) error {
	l.conn.Signal(l.signals)
	if err := l.conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(loginManager), dbus.WithMatchMember(prepare)); err != nil {
		return err
	}
	manager := l.conn.Object(loginName, loginPath)
	if most, err := manager.GetProperty(loginManager + ".InhibitDelayMaxUSec"); err == nil {
		micros, _ := most.Value().(uint64)
		if allowed := time.Duration(min(micros, 1<<53)) * time.Microsecond; allowed < grace {
			klog.InfoS("Warning: systemd-logind delays a shutdown for less than --shutdown-grace-period; raise its InhibitDelayMaxSec", "allowed", allowed, "wanted", grace)
		}
	}
	var lock dbus.UnixFD
	if err := manager.CallWithContext(ctx, loginManager+".Inhibit", 0, "shutdown", who, why, "delay").Store(&lock); err != nil {
		return fmt.Errorf("cannot take a lock: %w", err)
	}
	l.lock = int(lock)
	return nil
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
func untilLogind(ctx context.Context, address, who string, grace time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	try := func() error {
		l, err := openLogind(ctx, address, who, "pods end in order", grace)
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
