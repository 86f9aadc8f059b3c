package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Down removes every trace of the cluster, in any state, and fails if something is left. Logs remain below State until
// the next Up. It does not rely on records: it finds processes by namespace and cgroup, and mounts by path.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	return c.run(ctx, []step{
		{"end processes and containers", c.endProcesses},
		{"unmount", c.unmountAll},
		{"remove namespaces, cgroups and files", c.removeAll},
		{"look for leftovers", func(context.Context) error {
			if left := c.Leftovers(); len(left) > 0 {
				return fmt.Errorf("these are left; end what uses them, then run make down again:\n  %s", strings.Join(left, "\n  "))
			}
			return nil
		}},
	})
}

func (c *Cluster) namespaces() []string {
	names := []string{switchNamespace}
	for _, host := range c.machines() {
		names = append(names, host.Namespace())
	}
	return names
}

// Processes lists every process of the cluster: in a host's network namespace, in a node's cgroup, or with one of the
// cluster's paths in its command line (an engine's helper may be in a pod's network).
func (c *Cluster) Processes() []int {
	var pids []int
	add := func(pid int) {
		if _, alive := startTime(pid); alive && pid != os.Getpid() && pid != os.Getppid() && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	for _, node := range c.machines() {
		for _, pid := range cgroupProcesses(node.cgroup()) {
			add(pid)
		}
	}
	inodes := map[uint64]bool{}
	for _, name := range c.namespaces() {
		if inode, ok := inodeOf("/run/netns/" + name); ok {
			inodes[inode] = true
		}
	}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if inode, ok := inodeOf("/proc/" + entry.Name() + "/ns/net"); ok && inodes[inode] {
			add(pid)
			continue
		}
		if data, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline"); err == nil && c.isHelper(strings.Split(string(data), "\x00")) {
			add(pid)
		}
	}
	return pids
}

// isHelper reports whether a command line is that of an engine's helper.
func (c *Cluster) isHelper(argv []string) bool {
	switch filepath.Base(argv[0]) {
	case "containerd-shim", "containerd-shim-runc-v2", "runc", "docker-proxy":
		return slices.ContainsFunc(argv, func(arg string) bool { return strings.HasPrefix(arg, runDir+"/") })
	}
	return false
}

// inodeOf returns the inode of the namespace at path: in /proc it is a link net:[4026531840], as a mount a file with
// that inode.
func inodeOf(path string) (uint64, bool) {
	if target, err := os.Readlink(path); err == nil {
		number, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(target, "net:["), "]"), 10, 64)
		return number, err == nil
	}
	for _, m := range readMounts() {
		if m.point == path && m.kind == "nsfs" {
			number, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(m.root, "net:["), "]"), 10, 64)
			return number, err == nil
		}
	}
	return 0, false
}

// endProcesses kills processes until none is left: a live agent may start new ones while its children die.
func (c *Cluster) endProcesses(ctx context.Context) error {
	for _, host := range c.machines() {
		for _, process := range slices.Backward(host.processes) {
			if err := process.Kill9(ctx); err != nil {
				return err
			}
		}
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		pids := c.Processes()
		killAll(pids)
		return len(pids) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("processes %v do not end, although killed; run make down again: %w", c.Processes(), err)
	}
	return nil
}

func killAll(pids []int) {
	for _, pid := range pids {
		if process, err := os.FindProcess(pid); err == nil {
			_ = process.Signal(syscall.SIGKILL)
		}
	}
}

// mount is one line of the machine's mount table.
type mount struct{ root, point, kind string }

func readMounts() []mount {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`)
	var mounts []mount
	for line := range strings.Lines(string(data)) {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) > 4 && len(kind) > 0 {
			mounts = append(mounts, mount{root: fields[3], point: unescape.Replace(fields[4]), kind: kind[0]})
		}
	}
	return mounts
}

// mountPoints lists the cluster's mounts, latest first, without the namespaces themselves.
func (c *Cluster) mountPoints() []string {
	var points []string
	root := c.mountsStandardRoot()
	for _, m := range readMounts() {
		if strings.HasPrefix(m.point, c.State+"/") || strings.HasPrefix(m.point, runDir+"/") || root && strings.HasPrefix(m.point+"/", standardRoot+"/") {
			points = append(points, m.point)
		}
	}
	slices.Reverse(points)
	return points
}

func (c *Cluster) unmountAll(ctx context.Context) error {
	for _, point := range c.mountPoints() {
		if _, err := run(ctx, "umount", point); err != nil {
			if _, err := run(ctx, "umount", "--lazy", point); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) removeAll(ctx context.Context) error {
	var errs []error
	for _, node := range c.machines() {
		errs = append(errs, removeShimSockets(node.RunDir("containerd")), node.removePins(ctx))
		errs = append(errs, wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
			return removeCgroups(node.cgroup()) == nil, nil // a cgroup is busy until its last process is reaped
		}))
	}
	for _, name := range c.namespaces() {
		if _, err := os.Stat("/run/netns/" + name); err == nil {
			_, err := run(ctx, "ip", "netns", "del", name)
			errs = append(errs, err)
		}
	}
	for _, host := range c.machines() {
		errs = append(errs, removeButLogs(host.Dir()))
	}
	removeStandardRoot(standardRoot)
	errs = append(errs, os.RemoveAll(c.Kubeconfig()), os.RemoveAll(runDir))
	for _, dir := range []string{"/run/containerd/s", "/run/containerd", "/run/docker/plugins", "/run/docker"} {
		_ = os.Remove(dir) // engines create these despite their configuration; Remove fails for those in use
	}
	errs = append(errs, removeNetnsDir(ctx))
	return errors.Join(errs...)
}

// removeNetnsDir removes the directory that `ip netns` created and bind-mounted onto itself, unless others have
// namespaces there.
func removeNetnsDir(ctx context.Context) error {
	entries, err := os.ReadDir("/run/netns")
	if err != nil || len(entries) > 0 {
		return nil
	}
	for _, m := range readMounts() {
		if m.point == "/run/netns" {
			if _, err := run(ctx, "umount", m.point); err != nil {
				return err
			}
		}
	}
	return os.Remove("/run/netns")
}

// removeShimSockets removes the sockets that killed shims leave in containerd's default directory, which does not
// depend on the state directory.
func removeShimSockets(state string) error {
	return filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if entry.Name() == "address" {
			if data, err := os.ReadFile(path); err == nil {
				if socket, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "unix://"); ok {
					_ = os.Remove(socket)
				}
			}
		}
		return nil
	})
}

// removeButLogs empties a host's directory except for its logs.
func removeButLogs(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() && strings.HasSuffix(entry.Name(), ".log") {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Leftovers lists what is left of a cluster: processes, mounts, namespaces, cgroups, interfaces, files.
func (c *Cluster) Leftovers() []string {
	var left []string
	for _, pid := range c.Processes() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d %s", pid, strings.ReplaceAll(string(cmdline), "\x00", " ")))
	}
	for _, point := range c.mountPoints() {
		left = append(left, "mount "+point)
	}
	for _, name := range c.namespaces() {
		if _, err := os.Stat("/run/netns/" + name); err == nil {
			left = append(left, "namespace "+name)
		}
	}
	for _, node := range c.machines() {
		for _, dir := range cgroupDirs(node.cgroup()) {
			left = append(left, "cgroup "+dir)
		}
	}
	if _, err := os.Stat(runDir); err == nil {
		left = append(left, "directory "+runDir)
	}
	for _, host := range c.machines() {
		if links, err := filepath.Glob("/sys/class/net/" + host.Name); err == nil {
			for _, link := range links {
				left = append(left, "interface "+link)
			}
		}
	}
	return left
}
