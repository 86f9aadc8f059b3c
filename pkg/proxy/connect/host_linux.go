package connect

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	bpffs = "/sys/fs/bpf"
	pins  = bpffs + "/winkube-proxy"
	// The inode numbers of the first cgroup and PID namespaces (linux/proc_ns.h).
	firstCgroupNamespace, firstPIDNamespace = 0xEFFFFFFB, 0xEFFFFFFC
)

// locate finds the cgroup and the directory of its pins. Each cgroup of a host has its own.
func (k *linuxKernel) locate() error {
	if k.cgroup == "" {
		root, err := RootCgroup()
		if err != nil {
			return err
		}
		k.cgroup = root
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(k.cgroup, &stat); err != nil {
		return fmt.Errorf("cgroup %s: %w", k.cgroup, err)
	}
	if stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("cgroup %s is not a directory of a cgroup2 file system", k.cgroup)
	}
	inode, err := inodeOf(k.cgroup)
	if err != nil {
		return err
	}
	k.inode, k.dir = inode, filepath.Join(pins, strconv.FormatUint(inode, 10))
	return nil
}

func inodeOf(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return stat.Ino, nil
}

// RootCgroup returns the cgroup whose clients are served by default: the mount point of cgroup2, alone or next to v1. All processes of the host
// are in it.
func RootCgroup() (string, error) {
	if inode, err := inodeOf("/proc/self/ns/cgroup"); err != nil || inode != firstCgroupNamespace {
		return "", errors.New("this process has a cgroup namespace and does not see the host's cgroups; name one by --connect-cgroup")
	}
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
			return fields[4], nil
		}
	}
	return "", errors.New("no cgroup2 file system is mounted")
}

// mountPins mounts the file system that keeps programs and maps without a process, unless it is mounted.
func mountPins() error {
	var stat unix.Statfs_t
	if err := unix.Statfs(bpffs, &stat); err != nil {
		return fmt.Errorf("%s: %w", bpffs, err)
	}
	if stat.Type != unix.BPF_FS_MAGIC {
		if err := unix.Mount("bpffs", bpffs, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=700"); err != nil {
			return fmt.Errorf("cannot mount the bpf file system at %s: %w", bpffs, err)
		}
	}
	return nil
}
