package tuning

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// setting is a kernel setting that outlives the proxy.
type setting struct{ name, path string }

var notes = "/run/winkube-proxy" // a variable for tests

var (
	reusePort = setting{"net.ipv4.tcp_tw_reuse", "/proc/sys/net/ipv4/tcp_tw_reuse"}
	tableSize = setting{"net.netfilter.nf_conntrack_max", "/proc/sys/net/netfilter/nf_conntrack_max"} // missing while nothing tracks connections
)

// Values of tcp_tw_reuse.
const (
	reuseAlways   = "1"
	reuseLoopback = "2" // the kernel's default
)

// Apply changes the settings for so many loops, and for so many entries of connection tracking; 0: as many as the host has. It
// returns the changes made, even with an error. Call it once, before the first loop starts.
func Apply(loops, tracked int) (changes []Change, err error) {
	if loops > 0 {
		changes = append(changes, addProcessors(loops))
	}
	changes = append(changes, unlockMemory()...)
	reuse, err := reusePorts()
	table, tableErr := tableSize.raise(tracked)
	return slices.Concat(changes, reuse, table), errors.Join(err, tableErr)
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

// note returns the file that records our change of the setting in this network namespace: the value before, and ours. Like the
// setting, it does not survive a reboot.
func (s setting) note() string {
	space, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		space = "net"
	}
	return filepath.Join(notes, filepath.Base(s.path)+"-"+strings.Trim(strings.TrimPrefix(space, "net:"), "[]"))
}

func (s setting) read() (string, error) {
	text, err := os.ReadFile(s.path)
	return strings.TrimSpace(string(text)), err
}

// change sets the setting. It records that first, so that the change of a killed proxy is known, and keeps the record of an earlier one: the
// value before that is the host's.
func (s setting) change(before, after string) ([]Change, error) {
	note := s.note()
	host := before
	if earlier, err := os.ReadFile(note); err == nil {
		if was, ours, ok := strings.Cut(string(earlier), " "); ok && ours == before {
			host = was
		}
	}
	noted := errors.Join(os.MkdirAll(filepath.Dir(note), 0o755), os.WriteFile(note, []byte(host+" "+after), 0o644))
	if noted != nil {
		noted = fmt.Errorf("cannot record that %s was %s; --cleanup will not restore it: %w", s.name, before, noted)
	}
	if err := os.WriteFile(s.path, []byte(after), 0o644); err != nil {
		if host == before {
			_ = os.Remove(note)
		}
		return nil, err
	}
	return []Change{{s.name, before, after}}, noted
}

// Restore restores the host's settings that a proxy changed and no one has changed since.
func Restore() error { return errors.Join(reusePort.restore(), tableSize.restore()) }

func (s setting) restore() error {
	note := s.note()
	text, err := os.ReadFile(note)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	before, after, ok := strings.Cut(string(text), " ")
	if !ok { // of an earlier version, which changed tcp_tw_reuse alone
		after = reuseAlways
	}
	if now, readErr := s.read(); err == nil && readErr == nil && now == after {
		err = os.WriteFile(s.path, []byte(before), 0o644)
	}
	if err = errors.Join(err, os.Remove(note)); err != nil {
		return fmt.Errorf("cannot restore %s: %w", s.name, err)
	}
	return nil
}

// reusePorts makes the kernel reuse source ports that are in TIME_WAIT for a second, which timestamps make safe (RFC
// 6191), unless an administrator has decided otherwise: the kernel's default, 2, does this only for loopback. A relay
// forwards the client's end, so it is the first to close each connection to an endpoint and keeps it in TIME_WAIT for a
// minute, with a source port for that endpoint: 470 connections per second would use them up.
func reusePorts() ([]Change, error) {
	now, err := reusePort.read()
	if err != nil || now != reuseLoopback {
		return nil, nil // a kernel without the setting does not reuse ports; another value is an administrator's decision
	}
	changes, err := reusePort.change(reuseLoopback, reuseAlways)
	if err != nil && changes == nil {
		err = fmt.Errorf("cannot make the kernel reuse source ports in TIME_WAIT; many short connections to one endpoint can exhaust them: %w", err)
	}
	return changes, err
}

// raise makes the table of connection tracking larger, if it is smaller. One table serves all network namespaces, and only the host's own can
// set it.
func (s setting) raise(entries int) ([]Change, error) {
	text, err := s.read()
	now, notNumber := strconv.Atoi(text)
	if err != nil || notNumber != nil || now >= entries {
		return nil, nil // nothing tracks connections, or enough of them
	}
	changes, err := s.change(text, strconv.Itoa(entries))
	if err != nil && changes == nil {
		err = fmt.Errorf("cannot raise %s from %d to %d; the relay holds a quarter of it in connections: %w", s.name, now, entries, err)
	}
	return changes, err
}
