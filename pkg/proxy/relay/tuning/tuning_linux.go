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

// Apply changes the settings for so many loops and returns what it has changed, also where it fails with others. It is called once, before the first
// loop starts.
func Apply(loops int) (changes []Change, err error) {
	if loops > 0 {
		changes = append(changes, addProcessors(loops))
	}
	changes = append(changes, unlockMemory()...)
	reuse, err := reusePorts()
	return append(changes, reuse...), err
}

// addProcessors gives Go's scheduler one processor more for each loop, which keeps one while it waits for its next event: everybody else has as many as
// without loops.
func addProcessors(loops int) Change {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + loops)
	return Change{"GOMAXPROCS", strconv.Itoa(before), strconv.Itoa(before + loops)}
}

// unlockMemory lifts the limit of locked memory, to which kernels before 5.11 count BPF maps. Where it cannot, and the kernel is such a one, the plane
// says that it has no lookup.
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

// settingNote is the file that says that we have changed tcp_tw_reuse in this network namespace. As the setting it does not outlive the host.
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

// Restore gives the kernel's setting back where a proxy has changed it and it has not been changed since.
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

// reusePorts has the kernel reuse source ports in TIME_WAIT that are a second old, which timestamps make safe (RFC 6191), unless an administrator has
// decided otherwise: the kernel's default, 2, does so for loopback only. As the side that passes on a client's end first, a relay keeps each connection to an endpoint a
// minute in TIME_WAIT, and with it a source port for that endpoint: 470 connections a second would use them up.
func reusePorts() ([]Change, error) {
	setting, err := os.ReadFile(reusePort)
	if err != nil || strings.TrimSpace(string(setting)) != reuseLoopback {
		return nil, nil // a kernel without it reuses none; another value is an administrator's decision
	}
	note := settingNote() // before the change: what a killed proxy has changed is known
	if noteErr := noteSetting(note); noteErr != nil {
		err = fmt.Errorf("cannot record that net.ipv4.tcp_tw_reuse was %s; --cleanup will not restore it: %w", reuseLoopback, noteErr)
	}
	if writeErr := os.WriteFile(reusePort, []byte(reuseAlways), 0o644); writeErr != nil {
		_ = os.Remove(note)
		return nil, fmt.Errorf("cannot make the kernel reuse source ports in TIME_WAIT; many short connections to one endpoint can exhaust them: %w", writeErr)
	}
	return []Change{{"net.ipv4.tcp_tw_reuse", reuseLoopback, reuseAlways}}, err
}
