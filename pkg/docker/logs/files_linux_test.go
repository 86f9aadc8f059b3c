package logs

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

// TestLogFilePipe: a pipe among the engine's log files is not a log.
func TestLogFilePipe(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "a-json.log"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Files{dir: dir, base: "a-json.log", count: 1}).open(); !errors.Is(err, errNoLogFiles) {
		t.Errorf("got %v, want that the engine is asked", err)
	}
}
