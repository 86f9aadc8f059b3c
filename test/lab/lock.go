package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Lock prevents other programs from starting or stopping the cluster until the returned function is called or this
// program ends. The holder may lock it again.
func (c *Cluster) Lock() (unlock func(), err error) { return lockFile(filepath.Join(runDir, "lock")) }

func lockFile(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	start, _ := startTime(os.Getpid())
	mine := fmt.Sprintf("%d %d", os.Getpid(), start)
	// The lock file is linked into place, not written, so that it always names its holder.
	own := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(own, []byte(mine), 0o644); err != nil {
		return nil, err
	}
	defer os.Remove(own)
	for {
		err := os.Link(own, path)
		if err == nil {
			return func() { _ = os.Remove(path) }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if string(data) == mine {
			return func() {}, nil
		}
		var pid int
		var began uint64
		_, _ = fmt.Sscan(string(data), &pid, &began)
		if now, alive := startTime(pid); alive && now == began {
			argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			return nil, fmt.Errorf("process %d is starting, stopping or testing the cluster: wait until it ends, then try again: %s", pid, strings.TrimSpace(strings.ReplaceAll(string(argv), "\x00", " ")))
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a program that crashed
			return nil, err
		}
	}
}
