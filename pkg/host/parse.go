package host

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// parseMeminfo returns total memory and swap, in bytes, from /proc/meminfo.
func parseMeminfo(text string) (memory, swap uint64, err error) {
	for line := range strings.Lines(text) {
		key, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if key != "MemTotal" && key != "SwapTotal" || len(fields) == 0 {
			continue
		}
		kilobytes, err := strconv.ParseUint(fields[0], 10, 54)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", key, err)
		}
		if key == "MemTotal" {
			memory = kilobytes << 10
		} else {
			swap = kilobytes << 10
		}
	}
	if memory == 0 {
		return 0, 0, fmt.Errorf("no MemTotal")
	}
	return memory, swap, nil
}

// parseOSRelease returns the display name in os-release(5), "Linux" if there is none.
func parseOSRelease(text string) string {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME=")
		if value = strings.Trim(value, `"'`); ok && value != "" {
			return value
		}
	}
	return "Linux"
}

// parseCPUList counts the members of a list like 0-3,5; 0 if the text is not a list.
func parseCPUList(text string) int {
	total := 0
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || last < first {
			return 0
		}
		total += int(last-first) + 1
	}
	return total
}

// parseBootTime parses the line btime of /proc/stat.
func parseBootTime(text string) (time.Time, error) {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, "btime ")
		if !ok {
			continue
		}
		seconds, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("cannot read the boot time: /proc/stat: %w", err)
		}
		return time.Unix(seconds, 0), nil
	}
	return time.Time{}, fmt.Errorf("cannot read the boot time: /proc/stat has no line btime")
}

// bootID returns the boot counter of Windows' prefetcher, as upstream; without one (0), the minute of the boot.
func bootID(counter uint64, started time.Time) string {
	if counter > 0 {
		return strconv.FormatUint(counter, 10)
	}
	return started.UTC().Round(time.Minute).Format("20060102T1504Z")
}

// processorTimes is SYSTEM_PROCESSOR_PERFORMANCE_INFORMATION of Windows: the times of one processor in units of 100 ns.
// kernel contains idle.
type processorTimes struct {
	idle, kernel, user int64
	_                  [2]int64 // in DPCs and interrupts, both part of kernel
	_                  uint32   // interrupts
}

// worked returns the time that processors were not idle.
func worked(times []processorTimes) (sum time.Duration) {
	for _, t := range times {
		sum += time.Duration(t.kernel-t.idle+t.user) * 100
	}
	return sum
}
