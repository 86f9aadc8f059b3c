//go:build linux

package traffic

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// RSS returns the resident memory of a process in bytes.
func RSS(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// idle returns the RSS of a process after it has been stable for a second, at the latest after ten: a program that
// already serves may still release memory from its start.
func idle(pid int) (rss int64, err error) {
	for i, same := 0, 0; i < 100 && same < 10; i, same = i+1, same+1 {
		time.Sleep(100 * time.Millisecond)
		now, err := RSS(pid)
		if err != nil {
			return 0, err
		}
		if now != rss {
			rss, same = now, 0
		}
	}
	return rss, nil
}
