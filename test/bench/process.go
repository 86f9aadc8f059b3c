package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// quiet returns when the machine's processors have been idle for most of half a second. It gives up after half a minute, and says so: the
// figures then contain other work.
func quiet(ctx context.Context) error {
	const most = 30 * time.Second
	for begin := time.Now(); ; {
		share, err := idleShare(ctx, 500*time.Millisecond)
		if err != nil || share > 0.85 {
			return err
		}
		if time.Since(begin) > most {
			fmt.Fprintf(os.Stderr, "bench: the machine has not been quiet for %v; the next figures contain other work\n", most)
			return nil
		}
	}
}

// idleShare returns how much of the time d the machine's processors are idle, from 0 to 1.
func idleShare(ctx context.Context, d time.Duration) (float64, error) {
	begin := time.Now()
	before, err := idleTicks()
	if err != nil {
		return 0, err
	}
	if err := sleep(ctx, d); err != nil {
		return 0, err
	}
	after, err := idleTicks()
	return (after - before).Seconds() / time.Since(begin).Seconds() / float64(runtime.NumCPU()), err
}

// idleTicks returns the time for which the machine's processors have been idle, summed.
func idleTicks() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data)) // cpu user nice system idle iowait
	var ticks int64
	for _, field := range fields[4:6] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot read /proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// clockTick is the length of a clock tick: USER_HZ is 100 on every architecture that we support.
const clockTick = 10 * time.Millisecond

// cpuOf returns the CPU time of a process so far.
func cpuOf(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may contain anything. Of the fields after it, utime and stime are the 12th and 13th.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot read /proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// rssOf returns the resident memory of a process in bytes.
func rssOf(pid int) (int64, error) { return sizeOf(pid, "status", "VmRSS:") }

// sizeOf returns a line of one of the kernel's files about a process, in bytes.
func sizeOf(pid int, file, line string) (int64, error) {
	file = fmt.Sprintf("/proc/%d/%s", pid, file)
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for have := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(have, line); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("cannot read %s: no %s", file, line)
}

// shimsOf returns the memory of the shims of the containerd whose socket is below dir, in bytes: what they share counts once.
func shimsOf(dir string) (sum int64, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !isShim(string(line), dir) { // the process may have ended
			continue
		}
		if err != nil {
			return 0, err
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return 0, err
		}
		bytes, err := sizeOf(pid, "smaps_rollup", "Pss:")
		if err != nil {
			return 0, err
		}
		sum += bytes
	}
	return sum, nil
}

func isShim(line, dir string) bool {
	argv := strings.Split(line, "\x00")
	return strings.HasPrefix(filepath.Base(argv[0]), "containerd-shim") && slices.ContainsFunc(argv, func(arg string) bool { return strings.HasPrefix(arg, dir+"/") })
}
