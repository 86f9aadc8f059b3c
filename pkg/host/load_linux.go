package host

import (
	"fmt"
	"os"
)

func readLoad() (l Load, err error) {
	text := func(path string) string {
		data, failed := os.ReadFile(path)
		if failed != nil && err == nil {
			err = fmt.Errorf("cannot read the machine's load: %w", failed)
		}
		return string(data)
	}
	stat, memory := text("/proc/stat"), text("/proc/meminfo")
	l.parseFaults(text("/proc/vmstat"))
	l.Tasks = parseTasks(text("/proc/loadavg"))
	l.MaxTasks = parseLimit(text("/proc/sys/kernel/pid_max"), text("/proc/sys/kernel/threads-max"))
	if err != nil {
		return l, err
	}
	if l.CPU, err = parseStat(stat); err != nil {
		return l, err
	}
	return l, l.parseMemory(memory)
}
