package start

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestNamedPipeDoesNotBlock: a container may leave a named pipe without a writer in place of an environment file.
func TestNamedPipeDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "env"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readVolumeFile(map[string]string{"v": dir}, "v", "env"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
}
