package cgroup

import (
	"errors"
	"syscall"
)

// killProcess sends SIGKILL. An exited process is not an error.
func killProcess(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
