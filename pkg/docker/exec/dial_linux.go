package exec

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strconv"

	"github.com/vishvananda/netns"
)

// dialPeer connects from inside p's network namespace. A thread that cannot return to its own namespace is discarded with its goroutine.
func dialPeer(ctx context.Context, p peer, port int) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() { // awaited below; a thread that cannot return ends with this goroutine
		runtime.LockOSThread()
		conn, err, clean := dialInside(ctx, p.pid, port)
		if clean {
			runtime.UnlockOSThread()
		}
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// dialInside moves the calling thread into the namespace and back. clean says that it is back.
func dialInside(ctx context.Context, pid, port int) (conn net.Conn, err error, clean bool) { //nolint:staticcheck // clean is not the error's
	home, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("cannot find the network namespace of this thread: %w", err), true
	}
	defer home.Close()
	inside, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("cannot find the network namespace of process %d: %w", pid, err), true
	}
	defer inside.Close()
	if err := netns.Set(inside); err != nil {
		return nil, fmt.Errorf("cannot enter the network namespace of process %d: %w", pid, err), true
	}
	var dialer net.Dialer
	conn, err = dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		if conn6, err6 := dialer.DialContext(ctx, "tcp", net.JoinHostPort("::1", strconv.Itoa(port))); err6 == nil {
			conn, err = conn6, nil
		}
	}
	return conn, err, netns.Set(home) == nil
}
