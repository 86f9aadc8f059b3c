package tuning

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const reusePort = "/proc/sys/net/ipv4/tcp_tw_reuse"

// Values of tcp_tw_reuse.
const (
	reuseAlways   = "1"
	reuseLoopback = "2" // the kernel's default
)

// Apply changes the settings for so many loops. It returns the changes made, even with an error. Call it once, before
// the first loop starts.
func Apply(loops int) (changes []Change, err error) {
	if loops > 0 {
		changes = append(changes, addProcessors(loops))
	}
	changes = append(changes, unlockMemory()...)
	reuse, err := reusePorts()
	return append(changes, reuse...), err
}

// addProcessors gives Go's scheduler one more processor for each loop, which occupies one while it waits for its next
// event: so other goroutines have as many as without loops.
func addProcessors(loops int) Change {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + loops)
	return Change{"GOMAXPROCS", strconv.Itoa(before), strconv.Itoa(before + loops)}
}

// unlockMemory removes the limit of locked memory, which includes BPF maps on kernels before 5.11. If that fails on
// such a kernel, the plane reports that it has no lookup.
func unlockMemory() []Change {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return nil
	}
	return []Change{{"RLIMIT_MEMLOCK", strconv.FormatUint(limit.Cur, 10), "unlimited"}}
}

// settingNote returns the file that records that we changed tcp_tw_reuse in this network namespace. Like the setting,
// it does not survive a reboot.
func settingNote() string {
	space, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		space = "net"
	}
	return filepath.Join("/run/winkube-proxy", "tcp_tw_reuse-"+strings.Trim(strings.TrimPrefix(space, "net:"), "[]"))
}

func noteSetting(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(reuseLoopback), 0o644)
}

// Restore restores the kernel's setting if a proxy changed it and no one has changed it since.
func Restore() error {
	note := settingNote()
	before, err := os.ReadFile(note)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if now, readErr := os.ReadFile(reusePort); err == nil && readErr == nil && strings.TrimSpace(string(now)) == reuseAlways {
		err = os.WriteFile(reusePort, before, 0o644)
	}
	if err = errors.Join(err, os.Remove(note)); err != nil {
		return fmt.Errorf("cannot restore net.ipv4.tcp_tw_reuse: %w", err)
	}
	return nil
}

// reusePorts makes the kernel reuse source ports that are in TIME_WAIT for a second, which timestamps make safe (RFC
// 6191), unless an administrator has decided otherwise: the kernel's default, 2, does this only for loopback. A relay
// forwards the client's end, so it is the first to close each connection to an endpoint and keeps it in TIME_WAIT for a
// minute, with a source port for that endpoint: 470 connections per second would use them up.
func reusePorts() ([]Change, error) {
	setting, err := os.ReadFile(reusePort)
	if err != nil || strings.TrimSpace(string(setting)) != reuseLoopback {
		return nil, nil // a kernel without the setting does not reuse ports; another value is an administrator's decision
	}
	note := settingNote() // before the change, so that the change of a killed proxy is known
	if noteErr := noteSetting(note); noteErr != nil {
		err = fmt.Errorf("cannot record that net.ipv4.tcp_tw_reuse was %s; --cleanup will not restore it: %w", reuseLoopback, noteErr)
	}
	if writeErr := os.WriteFile(reusePort, []byte(reuseAlways), 0o644); writeErr != nil {
		_ = os.Remove(note)
		return nil, fmt.Errorf("cannot make the kernel reuse source ports in TIME_WAIT; many short connections to one endpoint can exhaust them: %w", writeErr)
	}
	return []Change{{"net.ipv4.tcp_tw_reuse", reuseLoopback, reuseAlways}}, err
}
