package host

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Load is the resource usage of the whole machine at one moment.
type Load struct {
	CPU         time.Duration // time of all processors since the machine started, without idle time and I/O wait
	Memory      uint64        // bytes in use, including file caches
	WorkingSet  uint64        // bytes in use that cannot be reclaimed immediately
	Resident    uint64        // bytes of processes' anonymous memory; 0: unknown
	Capacity    uint64        // bytes of memory in total
	Swap        uint64        // bytes swapped out
	SwapFree    uint64        // bytes
	Faults      uint64        // page faults since the machine started; 0: unknown
	MajorFaults uint64        // page faults that read from a disk
	Tasks       int64         // processes and threads; 0: unknown
	MaxTasks    int64         // maximum; 0: no limit
	// Commit is the memory that the system has promised to all processes, and CommitLimit the most it can promise:
	// memory and page files. Bytes, 0 on Linux, which overcommits.
	Commit, CommitLimit uint64
}

// ReadLoad returns the current Load.
func ReadLoad() (Load, error) { return readLoad() }

// ticksPerSecond is the unit of /proc/stat, the same on every architecture that we support.
const ticksPerSecond = 100

// parseStat adds up the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. The guest
// columns after them are already part of user (proc(5)).
func parseStat(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 5 || fields[0] != "cpu" {
		return 0, fmt.Errorf("cannot find the processors' time in /proc/stat: %q", line)
	}
	var ticks uint64
	for i, field := range fields[1:] {
		n, err := strconv.ParseUint(field, 10, 62)
		if err != nil {
			return 0, fmt.Errorf("cannot read the processors' time in /proc/stat: %w", err)
		}
		if i != 3 && i != 4 && i < 8 {
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / ticksPerSecond), nil
}

// parseMemory parses /proc/meminfo. Inactive file pages are the memory that can be reclaimed immediately. Upstream
// reports the same figure but takes it from the root cgroup, where only one version of cgroups has it.
func (l *Load) parseMemory(text string) error {
	values := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) == 2 && fields[1] == "kB" {
			if n, err := strconv.ParseUint(fields[0], 10, 53); err == nil {
				values[name] = n << 10
			}
		}
	}
	l.Capacity = values["MemTotal"]
	if l.Capacity == 0 {
		return fmt.Errorf("cannot find MemTotal in /proc/meminfo")
	}
	l.Memory = less(l.Capacity, values["MemFree"])
	l.WorkingSet = less(l.Memory, values["Inactive(file)"])
	l.Resident = values["AnonPages"]
	l.SwapFree = values["SwapFree"]
	l.Swap = less(values["SwapTotal"], l.SwapFree)
	return nil
}

func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// parseFaults parses /proc/vmstat.
func (l *Load) parseFaults(text string) {
	for line := range strings.Lines(text) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name {
		case "pgfault":
			l.Faults, _ = strconv.ParseUint(value, 10, 64)
		case "pgmajfault":
			l.MajorFaults, _ = strconv.ParseUint(value, 10, 64)
		}
	}
}

// parseTasks parses the fourth field of /proc/loadavg, "running/all".
func parseTasks(text string) int64 {
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, _ := strconv.ParseInt(all, 10, 64)
	return max(n, 0)
}

// parseLimit returns the smallest of the numbers in texts; 0: none.
func parseLimit(texts ...string) (least int64) {
	for _, text := range texts {
		if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}
