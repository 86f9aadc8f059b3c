package docker

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/pod"
)

// TestOtherMode: an engine that runs containers of another system, as Docker Desktop can, is an error that says how that is changed.
func TestOtherMode(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	r.cfg.Platform = pod.Platform{OS: "windows", Build: 20348, SharedNetwork: true}
	info, err := r.Info(t.Context())
	if err == nil || info.OS != "linux" || !strings.Contains(err.Error(), "runs containers of linux, and this agent is for windows: switch Docker to containers of windows") {
		t.Errorf("%+v, %v", info, err)
	}
}

// TestRubbish: whatever answers in the engine's place is an error that says so, never "nothing runs".
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
			_, _ = http.ReadRequest(bufio.NewReader(conn)) // all of it: what is left unread would have the answer lost
			_, _ = io.WriteString(conn, "\x00\x01rubbish\r\n\r\n")
			conn.Close()
		}
	}()
	e, err := New(Config{Host: "tcp://" + listener.Addr().String(), Platform: windows2019})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Info(t.Context()); err == nil || !strings.Contains(err.Error(), "malformed HTTP") {
		t.Errorf("got %v", err)
	}
	if all, err := e.ObserveAll(t.Context()); err == nil || all != nil {
		t.Errorf("nothing runs, %v", err)
	}
}
