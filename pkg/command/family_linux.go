package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// family is a program and its descendants: all processes with one mark in their environment (proc(5), environ).
type family struct{ mark string }

func newFamily(mark string) (*family, error) { return &family{mark}, nil }

func (f *family) adopt(*os.Process) error { return nil }

func (f *family) end() error { return EndFamily(f.mark) }

func (f *family) close() {}

// maxRounds is how often EndFamily scans again for processes that started during a scan.
const maxRounds = 10

// EndFamily kills every process that was started with mark, a NAME=value, in its environment. It is not an error if there is none.
func EndFamily(mark string) error {
	for range maxRounds {
		found, err := marked(mark)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, pid := range found {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("cannot end process %d: %w", pid, err)
			}
		}
	}
	return nil // the processes killed last may still be exiting
}

// marked lists the processes with mark. Exited processes show no environment.
func marked(mark string) (pids []int, err error) {
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		data, readErr := os.ReadFile(path)
		if readErr != nil || !slices.ContainsFunc(bytes.Split(data, []byte{0}), func(v []byte) bool { return string(v) == mark }) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
