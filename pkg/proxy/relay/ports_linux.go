package relay

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	portRange = "/proc/sys/net/ipv4/ip_local_port_range"
	reusePort = "/proc/sys/net/ipv4/tcp_tw_reuse"
)

// Values of tcp_tw_reuse.
const (
	reuseAlways   = "1"
	reuseLoopback = "2" // the kernel's own
)

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

// RestorePorts gives the kernel's setting back where a relay changed it and nobody has since.
func RestorePorts() error {
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

// preparePorts returns how many source ports the kernel may choose from; 0: unknown. As the side that passes on a client's end first, a relay
// keeps each of its own connections a minute in TIME_WAIT, and with it a source port towards that endpoint: 470 connections a second would
// use them up. So the kernel is told to reuse those that are a second old, which timestamps make safe (RFC 6191), unless somebody has
// decided otherwise: its own setting, 2, does so for loopback only.
func preparePorts() int {
	if setting, err := os.ReadFile(reusePort); err == nil && strings.TrimSpace(string(setting)) == reuseLoopback {
		err := os.WriteFile(reusePort, []byte(reuseAlways), 0o644)
		if err == nil {
			err = noteSetting(settingNote())
		}
		if err != nil {
			klog.InfoS("Source ports in TIME_WAIT cannot be reused, or --cleanup will not know of it: many short connections to one endpoint may use them up", "err", err)
		}
	}
	return sourcePorts()
}

// usualPorts are the kernel's own range.
const usualPorts = 28232

// sourcePorts is how many source ports the kernel may choose from.
func sourcePorts() int {
	text, err := os.ReadFile(portRange)
	if err != nil {
		return 0
	}
	var first, last int
	if n, _ := fmt.Sscan(string(text), &first, &last); n != 2 || last < first {
		return 0
	}
	return last - first + 1
}

// hostCapacity reads what this process and this network namespace have. The soft limit of open files is the hard one already: Go raises it at start.
func hostCapacity() capacity {
	c := capacity{files: mostFiles, ports: cmp.Or(sourcePorts(), usualPorts)}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < mostFiles {
		c.files = int(limit.Cur)
	}
	return c
}
