package relaytest

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// ManyConnections opens WINKUBE_CONNECTIONS connections, a slow client among them, and uses each twice. This process
// has both ends of each and the relay's two, so it needs four files per connection.
func ManyConnections(t *testing.T, subject Subject) {
	count, err := strconv.Atoi(os.Getenv("WINKUBE_CONNECTIONS"))
	if err != nil {
		t.Skip("WINKUBE_CONNECTIONS says how many connections to open")
	}
	h := NewHost(t, subject)
	echo := TCPServer(t, func(c *net.TCPConn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }) // without a pipe for each
	flood := TCPServer(t, func(c *net.TCPConn) { _, _ = io.Copy(c, zeros{}) })
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), echo), Route("slow", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1), flood))
	slow := DialFront(t, h.Front(1)) // reads nothing: its data must not delay the others, nor fill memory
	defer slow.Close()
	conns := make([]*net.TCPConn, count)
	for i := range conns {
		from := h.Addr(byte(100 + i%100)) // many clients, so that none reaches its share
		conn, err := net.DialTCP("tcp", &net.TCPAddr{IP: from.AsSlice()}, net.TCPAddrFromAddrPort(h.Front(0)))
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	for round := range 2 {
		for i, c := range conns {
			want := fmt.Sprintf("%08d", i)
			if _, err := c.Write([]byte(want)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
				t.Fatalf("round %d, connection %d: %q, %v", round, i, got, err)
			}
		}
	}
	if open := h.Open(t); open != count+1 {
		t.Errorf("%d are open, want %d", open, count+1)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d connections, %d goroutines, %d MiB of heap and stacks, of client and server too", count, runtime.NumGoroutine(), (m.HeapInuse+m.StackInuse)>>20)
	for _, c := range conns {
		_ = c.Close()
	}
	Eventually(t, "all end", func() bool { return h.Open(t) == 1 })
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
