package docker

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestRubbish: any other server in the engine's place is a clear error, never "nothing runs".
func TestRubbish(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(conn)) // all of it: unread data would lose the answer
			_, _ = io.WriteString(conn, "\x00\x01rubbish\r\n\r\n")
			conn.Close()
		}
	}()
	e, err := New(Config{Host: "tcp://" + listener.Addr().String(), Platform: windows2019})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Client.Info(t.Context()); err == nil || !strings.Contains(err.Error(), "malformed HTTP") {
		t.Errorf("got %v", err)
	}
	if all, err := e.Containers.ObserveAll(t.Context()); err == nil || all != nil {
		t.Errorf("nothing runs, %v", err)
	}
}
