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

// Victim is a process that the kernel ended because the machine had no memory left.
type Victim struct {
	PID  int
	Name string
}

// maxRecord is more than a record of /dev/kmsg can have (CONSOLE_EXT_LOG_MAX in the kernel's source).
const maxRecord = 16 << 10

// readOOM reports each victim in the records of /dev/kmsg, one of which comes with each Read, until reading fails.
func readOOM(records io.Reader, tell func(Victim)) error {
	buffer := make([]byte, maxRecord)
	for {
		n, err := records.Read(buffer)
		if errors.Is(err, syscall.EPIPE) { // older records were overwritten before they were read; the next Read gives the oldest that is left
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

// outOfMemory is what the kernel says when the machine is out of memory, and not only a cgroup: "Kill process" until 5.2, "Killed process" since.
var outOfMemory = regexp.MustCompile(`^Out of memory(?: \(oom_kill_allocating_task\))?: Kill(?:ed)? process ([0-9]+) \((.+)\),? (?:score|total-vm|UID)`)

// parseOOM reads a record: "PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT" (Documentation/ABI/testing/dev-kmsg). What a process has written there has
// another facility than the kernel's, 0, in its priority.
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
