package connect

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// killedProxy is the cgroup of TestKilledProxy, which is a proxy in a separate program. Each line of its input is a
// Table of one Service. It answers each with a line.
const (
	killedProxy  = "WINKUBE_KILLED_PROXY"
	killedLayout = "WINKUBE_KILLED_PROXY_LAYOUT"
)

// TestKilledProxy is the proxy of TestKilled.
func TestKilledProxy(t *testing.T) {
	cgroup := os.Getenv(killedProxy)
	if cgroup == "" {
		t.Skip("TestKilled runs it")
	}
	layout = os.Getenv(killedLayout)
	b := New(NewKernel(cgroup), Limits{})
	defer b.Close()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println("DONE", b.Sync(t.Context(), tableOf(route(lines.Text()), route("u 10.96.0.1:53 10.1.0.2:80", udp)), nil))
	}
}

// childProxy is a running TestKilledProxy.
type childProxy struct {
	*testing.T
	*child
	lines *bufio.Scanner
}

func (h *host) childProxy(t *testing.T, layout string) *childProxy {
	t.Helper()
	p := startChild(t, "TestKilledProxy", nil, killedProxy+"="+h.cgroup, killedLayout+"="+layout)
	return &childProxy{t, p, bufio.NewScanner(p.out)}
}

func (p *childProxy) to(table string) {
	p.Helper()
	fmt.Fprintln(p.in, table)
	for p.lines.Scan() {
		if text, ok := strings.CutPrefix(p.lines.Text(), "DONE "); ok {
			expect(p.T, "proxy", text, "<nil>")
			return
		}
	}
	p.Fatal("the proxy ended")
}

// echo answers each connection with its address, then with the received data until the connection ends.
func (h *host) echo(t *testing.T, addr string) {
	t.Helper()
	h.inside(t, h.pods, func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					for lines := bufio.NewScanner(c); lines.Scan(); {
						fmt.Fprintln(c, addr, lines.Text())
					}
				}()
			}
		}()
		return nil
	})
}

// echoed sends a line and returns the answer.
func echoed(c net.Conn, line string) string {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(c, line); err != nil {
		return err.Error()
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(answer)
}

// TestKilled: with 500 open connections the proxy is killed, and an upgrade with another layout of the maps follows. No
// connection ends, no new one is refused meanwhile, and the next proxy applies changes. The log says how soon: the goal is
// half a second on an idle machine.
func TestKilled(t *testing.T) {
	h := newHost(t)
	for _, addr := range []string{"10.1.0.2:80", "10.1.0.3:80", "10.1.0.4:80"} {
		h.echo(t, addr)
	}
	first := h.childProxy(t, layout)
	first.to("a 10.96.0.1:80 10.1.0.2:80 10.1.0.3:80")
	var held []net.Conn
	for range 500 {
		c, err := net.Dial("tcp", "10.96.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	// From here to the end, new connections are made continuously.
	stop, result, made, fromLast := make(chan struct{}), make(chan string), atomic.Int64{}, atomic.Int64{}
	go func() {
		runtime.LockOSThread()
		bad := ""
		if err := netns.Set(h.own); err != nil {
			bad = err.Error()
		}
		for bad == "" {
			select {
			case <-stop:
				result <- ""
				return
			default:
			}
			c, err := net.DialTimeout("tcp", "10.96.0.1:80", 10*time.Second) // less than the third repeat of a lost SYN, at 15 s
			if err != nil {
				bad = fmt.Sprintf("after %d: %s", made.Load(), reason(err))
				continue
			}
			switch got := echoed(c, "new"); got {
			case "10.1.0.2:80 new", "10.1.0.3:80 new":
			case "10.1.0.4:80 new":
				fromLast.Add(1)
			default:
				bad = fmt.Sprintf("after %d: %s", made.Load(), got)
			}
			made.Add(1)
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
		<-stop
		result <- bad
	}()
	more := func(what string) {
		t.Helper()
		for from, end := made.Load(), time.Now().Add(patience); made.Load() < from+100; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d new connections", what, made.Load()-from)
			}
		}
	}
	proxy, last := first, "10.1.0.2:80"
	for _, next := range []struct{ what, layout string }{{"kill -9", layout}, {"upgrade", "next"}, {"downgrade", layout}} {
		proxy.kill()
		more(next.what + ": no proxy")
		last = map[string]string{"10.1.0.2:80": "10.1.0.3:80", "10.1.0.3:80": "10.1.0.2:80"}[last]
		start := time.Now()
		proxy = h.childProxy(t, next.layout)
		proxy.to("a 10.96.0.1:80 " + last)
		took := time.Since(start)
		c, err := net.Dial("tcp", "10.96.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		expect(t, next.what, echoed(c, "?"), last+" ?")
		c.Close()
		t.Logf("%s: the change is followed %s after the start of the next proxy", next.what, took.Round(time.Millisecond))
		more(next.what + ": the next proxy")
	}
	proxy.to("a 10.96.0.1:80 10.1.0.4:80")
	more("change")
	close(stop)
	expect(t, "new connections", <-result, "")
	if fromLast.Load() == 0 {
		t.Error("no new connection followed the last change")
	}
	for n, c := range held {
		if got := echoed(c, fmt.Sprint(n)); got != "10.1.0.2:80 "+fmt.Sprint(n) && got != "10.1.0.3:80 "+fmt.Sprint(n) {
			t.Errorf("connection %d: %q", n, got)
		}
	}
	t.Logf("%d new connections, none refused; %d held, none ended", made.Load(), len(held))
	proxy.kill()
	h.to(t)
	expect(t, "removed", ask("tcp", "10.96.0.1:80", nil), unix.ENETUNREACH.Error())
}
