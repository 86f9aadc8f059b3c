package atomic

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
)

// TestHeldOpen: a program that has a file open without FILE_SHARE_DELETE keeps its former content until it closes it.
func TestHeldOpen(t *testing.T) {
	dir := t.TempDir()
	w := NewWriter(pod.Platform{OS: "windows", Build: 20348}, clock.RealClock{})
	write := func(text string) error { return w.Write(dir, Content{"key": {Data: []byte(text)}}, nil) }
	if err := write("1"); err != nil {
		t.Fatal(err)
	}
	name, err := windows.UTF16PtrFromString(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	handle, err := windows.CreateFile(name, windows.GENERIC_READ, windows.FILE_SHARE_READ, nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := write("2"); !errors.Is(err, ErrHeld) {
		t.Errorf("while it is open: %v", err)
	}
	if err := w.Write(dir, Content{}, nil); !errors.Is(err, ErrHeld) {
		t.Errorf("removed while it is open: %v", err)
	}
	if err := windows.CloseHandle(handle); err != nil {
		t.Fatal(err)
	}
	if err := write("2"); err != nil {
		t.Errorf("when it is closed: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "key")); err != nil || string(got) != "2" {
		t.Errorf("it has %q, %v", got, err)
	}
}
