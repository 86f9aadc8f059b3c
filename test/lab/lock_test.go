package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "lock")
	unlock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := lockFile(path)
	if err != nil {
		t.Fatalf("the holder cannot take its lock again: %v", err)
	}
	again()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the inner unlock freed the lock: %v", err)
	}
	unlock()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestLockOfOthers finds locks of a live and of a dead program. It tells them apart by /proc, so the first case needs
// Linux.
func TestLockOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if start, alive := startTime(os.Getppid()); alive {
		if err := os.WriteFile(path, fmt.Appendf(nil, "%d %d", os.Getppid(), start), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := lockFile(path); err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getppid())) {
			t.Errorf("took the lock of a living program: %v", err)
		}
	}
	if err := os.WriteFile(path, []byte("1 1"), 0o644); err != nil { // a program with that PID, started at another time
		t.Fatal(err)
	}
	unlock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
