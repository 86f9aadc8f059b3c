package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func read(f *Facts) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("cannot read the kernel's version: %w", err)
	}
	f.KernelVersion = unix.ByteSliceToString(name.Release[:])
	f.Hostname = strings.ToLower(strings.TrimSpace(unix.ByteSliceToString(name.Nodename[:])))
	if f.Hostname == "" {
		return fmt.Errorf("cannot read the host name: it is empty")
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return fmt.Errorf("cannot read the memory size: %w", err)
	}
	if f.Memory, f.Swap, err = parseMeminfo(string(meminfo)); err != nil {
		return fmt.Errorf("cannot read the memory size: /proc/meminfo: %w", err)
	}
	f.CPUs = onlineCPUs()
	f.OSImage = parseOSRelease(firstOf("/etc/os-release", "/usr/lib/os-release"))
	f.MachineID = firstOf("/etc/machine-id", "/var/lib/dbus/machine-id")
	f.SystemUUID = firstOf("/sys/class/dmi/id/product_uuid", "/proc/device-tree/system-id", "/proc/device-tree/vm,uuid", "/etc/machine-id")
	f.BootID = firstOf("/proc/sys/kernel/random/boot_id")
	var cgroups unix.Statfs_t
	f.CgroupV2 = unix.Statfs("/sys/fs/cgroup", &cgroups) == nil && cgroups.Type == unix.CGROUP2_SUPER_MAGIC
	f.HugePages, err = hugePages("/sys/kernel/mm/hugepages")
	return err
}

// onlineCPUs counts the machine's processors, not those that this process may use: a cpuset of ours does not change the
// node's size.
func onlineCPUs() int {
	if n := parseCPUList(firstOf("/sys/devices/system/cpu/online")); n > 0 {
		return n
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 1
	}
	return set.Count()
}

func hugePages(dir string) (map[uint64]uint64, error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil // a kernel without huge pages
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list huge pages: %w", err)
	}
	pages := map[uint64]uint64{}
	for _, e := range entries {
		var kilobytes, count uint64
		if _, err := fmt.Sscanf(e.Name(), "hugepages-%dkB", &kilobytes); err != nil {
			continue
		}
		if _, err := fmt.Sscan(firstOf(filepath.Join(dir, e.Name(), "nr_hugepages")), &count); err != nil {
			return nil, fmt.Errorf("cannot read the number of huge pages of %d kB: %w", kilobytes, err)
		}
		pages[kilobytes<<10] = count * kilobytes << 10
	}
	return pages, nil
}

// firstOf returns the trimmed text of the first readable file that is not empty.
func firstOf(paths ...string) string {
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if text := strings.Trim(string(data), " \t\n\x00"); err == nil && text != "" {
			return text
		}
	}
	return ""
}

func diskUsage(path string) (Disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Disk{}, fmt.Errorf("cannot read the file system of %s: %w", path, err)
	}
	block := uint64(s.Frsize)
	return Disk{
		Capacity: s.Blocks * block, Available: s.Bavail * block, Used: (s.Blocks - s.Bfree) * block,
		Inodes: s.Files, InodesFree: s.Ffree, InodesUsed: s.Files - s.Ffree,
	}, nil
}

func sameDisk(a, b string) (bool, error) {
	var device [2]uint64
	for i, path := range []string{a, b} {
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err != nil {
			return false, fmt.Errorf("cannot find the file system of %s: %w", path, err)
		}
		device[i] = uint64(s.Dev)
	}
	return device[0] == device[1], nil
}

func bootTime() (time.Time, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}, fmt.Errorf("cannot read the boot time: %w", err)
	}
	return parseBootTime(string(stat))
}

func elevated() (bool, error) { return os.Geteuid() == 0, nil }
