package daemon

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// busConn is a connection to a message bus. Read also returns files that came with the bytes, which are the caller's.
type busConn interface {
	io.WriteCloser
	Read(b []byte) (n int, files []*os.File, err error)
}

// Names of systemd-logind on the bus (org.freedesktop.login1(5)).
const (
	loginName    = "org.freedesktop.login1"
	loginPath    = "/org/freedesktop/login1"
	loginManager = "org.freedesktop.login1.Manager"
	busName      = "org.freedesktop.DBus"
	busPath      = "/org/freedesktop/DBus"
	prepareMatch = "type='signal',interface='" + loginManager + "',member='PrepareForShutdown'"
)

// logind is a connection to systemd-logind that holds up a shutdown until it is closed.
type logind struct {
	conn    busConn
	buffer  []byte
	files   []*os.File // that came, and were not taken
	serial  uint32
	lock    *os.File
	pending []message // signals that came while an answer was waited for
}

// openLogind takes a lock that delays the host's shutdown, in the name of who. grace is how long that is wanted; logind allows what its
// InhibitDelayMaxSec says, and a warning says so where that is less.
func openLogind(conn busConn, who, why string, grace time.Duration) (*logind, error) {
	l := &logind{conn: conn}
	if err := l.begin(who, why, grace); err != nil {
		l.close()
		return nil, fmt.Errorf("cannot ask systemd-logind to wait before a shutdown: %w", err)
	}
	return l, nil
}

func (l *logind) begin(who, why string, grace time.Duration) error {
	if err := l.authenticate(); err != nil {
		return err
	}
	if _, err := l.call(busName, busPath, busName, "Hello"); err != nil {
		return err
	}
	if _, err := l.call(busName, busPath, busName, "AddMatch", prepareMatch); err != nil {
		return err
	}
	if most, err := l.call(loginName, loginPath, "org.freedesktop.DBus.Properties", "Get", loginManager, "InhibitDelayMaxUSec"); err == nil {
		if allowed := delayOf(most); allowed < grace {
			klog.InfoS("Warning: systemd-logind holds up a shutdown for less than pods may take to end; its InhibitDelayMaxSec would have to be raised", "allowed", allowed, "wanted", grace)
		}
	}
	if _, err := l.call(loginName, loginPath, loginManager, "Inhibit", "shutdown", who, why, "delay"); err != nil {
		return err
	}
	if len(l.files) != 1 {
		return fmt.Errorf("the answer has %d files: want the lock", len(l.files))
	}
	l.lock, l.files = l.files[0], nil
	return nil
}

// authenticate says who we are, which the kernel confirms, and that we take files.
func (l *logind) authenticate() error {
	for _, line := range []struct{ say, want string }{
		{"\x00AUTH EXTERNAL " + hex.EncodeToString([]byte(strconv.Itoa(os.Getuid()))), "OK "}, {"NEGOTIATE_UNIX_FD", "AGREE_UNIX_FD"},
	} {
		if _, err := io.WriteString(l.conn, line.say+"\r\n"); err != nil {
			return err
		}
		answer, err := l.line()
		if err != nil {
			return err
		}
		if !strings.HasPrefix(answer, line.want) {
			return fmt.Errorf("the bus does not let us in: %q", answer)
		}
	}
	_, err := io.WriteString(l.conn, "BEGIN\r\n")
	return err
}

func (l *logind) line() (string, error) {
	for {
		if line, rest, ok := strings.Cut(string(l.buffer), "\r\n"); ok {
			l.buffer = []byte(rest)
			return line, nil
		}
		if len(l.buffer) > 4096 {
			return "", errMessage
		}
		if err := l.more(); err != nil {
			return "", err
		}
	}
}

func (l *logind) more() error {
	chunk := make([]byte, 4096)
	n, files, err := l.conn.Read(chunk)
	l.buffer = append(l.buffer, chunk[:n]...)
	l.files = append(l.files, files...)
	return err
}

// call asks and waits for the answer.
func (l *logind) call(target, path, iface, member string, arguments ...string) (message, error) {
	l.serial++
	m := message{kind: busCall, serial: l.serial, target: target, path: path, iface: iface, member: member}
	m.body, m.signature = texts(arguments...)
	if _, err := l.conn.Write(m.encode()); err != nil {
		return m, fmt.Errorf("%s: %w", member, err)
	}
	for {
		answer, err := l.receive()
		switch {
		case err != nil:
			return answer, fmt.Errorf("%s: %w", member, err)
		case answer.kind == busSignal:
			l.pending = append(l.pending, answer)
		case answer.replyTo != m.serial:
		case answer.kind == busError:
			r := reader{answer.body, 0, answer.order, false}
			return answer, fmt.Errorf("%s: %s: %s", member, answer.errorName, r.text())
		default:
			return answer, nil
		}
	}
}

func (l *logind) receive() (message, error) {
	for {
		m, size, err := decode(l.buffer)
		if err != nil {
			return m, err
		}
		if size > 0 {
			m.body = append([]byte{}, m.body...)
			l.buffer = l.buffer[size:]
			return m, nil
		}
		if err := l.more(); err != nil {
			return m, err
		}
	}
}

// await returns nil when logind says that the host shuts down.
func (l *logind) await() error {
	for {
		var m message
		if len(l.pending) > 0 {
			m, l.pending = l.pending[0], l.pending[1:]
		} else {
			var err error
			if m, err = l.receive(); err != nil {
				return err
			}
		}
		if m.kind == busSignal && m.iface == loginManager && m.member == "PrepareForShutdown" {
			if r := (reader{m.body, 0, m.order, false}); r.number() == 1 {
				return nil
			}
		}
	}
}

// close lets the shutdown go on.
func (l *logind) close() {
	_ = l.conn.Close()
	if l.lock != nil {
		_ = l.lock.Close()
	}
	for _, file := range l.files {
		_ = file.Close()
	}
}

// logindRetry is the pause before logind is asked again after the connection broke.
const logindRetry = 5 * time.Second

// untilLogind has the context end with ErrShutdown when the host shuts down, which waits meanwhile, until the program ends.
func untilLogind(ctx context.Context, dial func() (busConn, error), who string, grace time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	try := func() error {
		conn, err := dial()
		if err != nil {
			return fmt.Errorf("cannot ask systemd-logind to wait before a shutdown: %w", err)
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		l, err := openLogind(conn, who, "pods end in order", grace)
		if err != nil {
			return err
		}
		if err := l.await(); err != nil {
			l.close()
			return err
		}
		klog.InfoS("The host shuts down", "grace", grace)
		cancel(ErrShutdown) // the lock is held until the program ends
		return nil
	}
	go func() {
		told := false
		for {
			err := try()
			if err == nil || ctx.Err() != nil {
				return
			}
			if !told {
				klog.ErrorS(err, "Pods will not be ended in order before a shutdown while this is so")
				told = true
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(logindRetry):
			}
		}
	}()
	return ctx
}
