package sim

import (
	"net"
	"testing"
)

// TestAskedAgain: a call repeated under its name gets the same answer and is executed once. With another name, or without one, it is a new call.
func TestAskedAgain(t *testing.T) {
	w := New(20348)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Serve(l)
	t.Cleanup(w.Close)
	const rule = "interface\x00portproxy\x00add\x00v4tov4\x00listenport=80\x00listenaddress=10.96.0.10\x00connectaddress=10.244.1.7\x00connectport=8080\x00"
	for i, step := range []struct {
		call       string
		runs, more int
	}{{"netsh run 1-2-3", 1, 0}, {"netsh run 1-2-3", 1, 1}, {"netsh run 1-2-4", 2, 1}, {"netsh run", 3, 1}, {"netsh run", 4, 1}} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		result, answer, err := ask(conn, step.call, rule, "", "")
		_ = conn.Close()
		if err != nil || result != 0 || len(answer) != 1 {
			t.Errorf("call %d: %d, %q, %v", i, result, answer, err)
		}
		if runs, again := len(w.Log.Calls("run")), len(w.Log.Calls("again")); runs != step.runs || again != step.more {
			t.Errorf("after call %d netsh ran %d times and %d calls came again, want %d and %d", i, runs, again, step.runs, step.more)
		}
	}
	for i := range 2 * kept { // the cache is limited
		w.given.of(string(rune(i)))
	}
	if n := len(w.given.named); n != kept {
		t.Errorf("%d replies are remembered, want %d", n, kept)
	}
}
