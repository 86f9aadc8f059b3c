package host

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// Victim is a process that the kernel killed because the machine was out of memory.
type Victim struct {
	PID  int
	Name string
}

// maxRecord exceeds the longest record of /dev/kmsg (CONSOLE_EXT_LOG_MAX in the kernel's source).
const maxRecord = 16 << 10

// readOOM reports each victim in the records of /dev/kmsg, one record per Read, until reading fails.
func readOOM(records io.Reader, tell func(Victim)) error {
	buffer := make([]byte, maxRecord)
	for {
		n, err := records.Read(buffer)
		if errors.Is(err, syscall.EPIPE) { // older records were overwritten before they were read; the next Read returns the oldest that is left
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read the kernel's log: %w", err)
		}
		if victim, ok := parseOOM(string(buffer[:n])); ok {
			tell(victim)
		}
	}
}

// outOfMemory matches the kernel's message when the machine, not only a cgroup, is out of memory: "Kill process" until
// 5.2, "Killed process" since.
var outOfMemory = regexp.MustCompile(`^Out of memory(?: \(oom_kill_allocating_task\))?: Kill(?:ed)? process ([0-9]+) \((.+)\),? (?:score|total-vm|UID)`)

// parseOOM parses a record: "PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT" (Documentation/ABI/testing/dev-kmsg). Records
// that processes wrote have a facility other than the kernel's, 0, in their priority.
func parseOOM(record string) (Victim, bool) {
	prefix, text, ok := strings.Cut(record, ";")
	level, _, _ := strings.Cut(prefix, ",")
	priority, err := strconv.Atoi(level)
	if !ok || err != nil || priority>>3 != 0 {
		return Victim{}, false
	}
	match := outOfMemory.FindStringSubmatch(text)
	if match == nil {
		return Victim{}, false
	}
	pid, err := strconv.Atoi(match[1])
	return Victim{PID: pid, Name: match[2]}, err == nil
}
