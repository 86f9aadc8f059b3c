package main

import (
	"bufio"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestShell(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := dispatch([]string{"shell", "-c", "write " + path + " some text; append " + path + " and more; cat " + path}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != "some text\nand more\n" {
		t.Errorf("file holds %q, %v", data, err)
	}
	var code exitCode
	if err := dispatch([]string{"shell", "-c", "exit 7"}); !errors.As(err, &code) || code != 7 {
		t.Errorf("exit 7 gave %v", err)
	}
	if err := dispatch([]string{"nope"}); err == nil || !strings.Contains(err.Error(), "serve") {
		t.Errorf("a wrong command gave %v, want the list of commands", err)
	}
}

// TestStreamBreaks closes the stream's connection: that must be an error, since tests count on it.
func TestStreamBreaks(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		lines := bufio.NewReader(conn)
		for range 3 {
			line, _ := lines.ReadString('\n')
			_, _ = conn.Write([]byte(line))
		}
		conn.Close()
	}()
	if err := stream([]string{listener.Addr().String()}); err == nil {
		t.Error("a broken stream is no error")
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"90": 90 * time.Second, "1m30s": 90 * time.Second} {
		if got, err := duration(text); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}
