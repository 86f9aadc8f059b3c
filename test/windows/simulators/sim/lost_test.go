package sim_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/winkube/winkube/test/output"
)

const subscription = "NotifyIpInterfaceChange"

// TestLostNotification: the beginning of the first notification is lost, as happens occasionally under Wine on a busy machine. The shim
// subscribes again, and the program receives the next change.
func TestLostNotification(t *testing.T) {
	w, p := startBehind(t, 20348, func(l net.Listener) net.Listener { return &losing{Listener: l} })
	exe := contract(t)
	ctx, ended := context.WithCancel(t.Context())
	var said output.Said
	var failed error
	go func() {
		defer ended()
		said, failed = p.Finish(p.Command(t.Context(), exe, "-test.run=^TestHeard$", "-test.timeout=1m"))
	}()
	for i, adapter := range []string{"one", "two"} {
		if err := w.Log.Wait(ctx, func() bool { return len(w.Log.Calls(subscription)) == i+1 }); err != nil {
			break // the program has ended; the check below reports it
		}
		w.IPHelper.SetAdapter(adapter, true, nil)
	}
	<-ctx.Done()
	if failed != nil || !strings.Contains(said.Stderr, subscription+": a notification cannot be read, its beginning is lost; subscribed again") {
		t.Errorf("%v; the program printed %q", failed, said)
	}
	if got := len(w.Log.Calls(subscription)); got != 2 {
		t.Errorf("subscribed %d times, want 2; calls:\n%s", got, w.Log)
	}
}

// losing is a listener that loses the beginning of one notification on its connections: the first.
type losing struct {
	net.Listener
	lost atomic.Bool
}

func (l *losing) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &losingConn{Conn: conn, once: &l.lost}, err
}

type losingConn struct {
	net.Conn
	once    *atomic.Bool
	asked   []byte      // so far
	ours    atomic.Bool // it is a subscription
	answers int
}

func (c *losingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.asked = append(c.asked, p[:n]...); bytes.Contains(c.asked, []byte(subscription)) {
		c.ours.Store(true)
	}
	return n, err
}

// Write is called once per answer; the first confirms the subscription.
func (c *losingConn) Write(p []byte) (int, error) {
	const number = 4 // bytes: without the first number the rest is meaningless
	if c.answers++; c.answers == 1 || !c.ours.Load() || !c.once.CompareAndSwap(false, true) {
		return c.Conn.Write(p)
	}
	_, err := c.Conn.Write(p[number:])
	return len(p), err
}
