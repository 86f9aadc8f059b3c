package command

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/windows"
)

// TestAdopt: an exited process is skipped; a running process without a job object to join is an error.
func TestAdopt(t *testing.T) {
	_, exe := child(t)
	f, err := newFamily("")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	cmd := exec.Command(exe, "env")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	handle, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer windows.CloseHandle(handle)
	if _, err := windows.WaitForSingleObject(handle, windows.INFINITE); err != nil {
		t.Fatal(err)
	}
	if err := f.adopt(cmd.Process); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := f.adopt(&os.Process{Pid: -1}); err != nil { // as after Wait
		t.Errorf("a process that Windows does not know any more: %v", err)
	}
	own, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := new(family).adopt(own); err == nil {
		t.Error("a process was put into a job object that there is not")
	}
}
