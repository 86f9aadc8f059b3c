package server

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	programs "github.com/winkube/winkube/pkg/command/commandtest"
)

// TestLogPipes: requests for pipes and sockets below the log directory are answered immediately.
func TestLogPipes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"pipe", "svc.log"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	fake := programs.New()
	fake.Script("journalctl --field _SYSTEMD_UNIT", programs.Answer{})
	for path, want := range map[string]string{
		"/logs/pipe": "pipe is neither a file nor a directory", "/logs/socket": "socket is neither", "/logs/": `<a href="pipe">`,
		"/logs/?query=/pipe": "neither a file nor a directory", "/logs/?query=svc": "log not found for svc",
	} {
		w := httptest.NewRecorder()
		NodeLogs{Dir: dir, Query: true, OS: "linux", Runner: fake}.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %q, want %q", path, w.Code, w.Body, want)
		}
	}
}
