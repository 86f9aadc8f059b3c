package app

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestLimitFiles: the limit becomes the number, and can be raised again.
func TestLimitFiles(t *testing.T) {
	var before, after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	if err := limitFiles(before.Cur - 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &after); err != nil || after.Cur != before.Cur-1 || after.Max != before.Max {
		t.Errorf("limit %+v after %+v, %v", after, before, err)
	}
}
