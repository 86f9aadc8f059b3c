// Package host collects facts about this machine for the Node object, admission and statistics. Its only decision is
// which of the machine's addresses is the node's, and that is pure (address.go).
//
//	/proc, registry, system calls --> Facts, Disk, Addresses --> node, admit, stats
package host

import (
	"runtime"
	"time"
)

// Facts describes this machine. All fields except Memory, Swap and HugePages stay the same until a reboot.
type Facts struct {
	Hostname      string // lower case, as node names must be
	OS            string // "linux" or "windows"
	Arch          string // as in GOARCH
	OSImage       string // a display name: "Debian GNU/Linux 12 (bookworm)", "Windows Server 2022 Datacenter"
	KernelVersion string // 6.1.0-18-amd64; 10.0.20348.2700 on Windows
	MachineID     string // of the installation; the host name on Windows, as upstream
	SystemUUID    string // of the hardware; "" if the firmware does not provide it or we may not read it
	BootID        string // differs after each boot
	CgroupV2      bool   // Linux: version 2 has all controllers, not version 1
	// Windows only. Major, Minor and Build as in 10.0.14393 (Server 2016); UBR is the patch level after them.
	WindowsMajor, WindowsMinor, WindowsBuild, WindowsUBR int
	CPUs                                                 int               // logical processors of the whole machine, all processor groups
	Memory                                               uint64            // bytes
	Swap                                                 uint64            // bytes; 0 on Windows, where page files are not swap for pods
	HugePages                                            map[uint64]uint64 // bytes reserved, by page size in bytes; nil on Windows
}

// Disk is the usage of one file system in bytes, and in files on Linux (0 on Windows, which has no such limit).
type Disk struct {
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
}

// Read collects the facts. It fails only if a fact is missing that every node needs: host name, memory, OS version.
func Read() (Facts, error) {
	f := Facts{OS: runtime.GOOS, Arch: runtime.GOARCH}
	return f, read(&f)
}

// DiskUsage returns the usage of the file system of path, which must exist.
func DiskUsage(path string) (Disk, error) { return diskUsage(path) }

// SameDisk reports whether two paths, which must exist, are on one file system.
func SameDisk(a, b string) (bool, error) { return sameDisk(a, b) }

// BootTime returns when the machine started.
func BootTime() (time.Time, error) { return bootTime() }

// Elevated reports whether this process may administer the machine: as root, or as a member of Administrators with its
// full token.
func Elevated() (bool, error) { return elevated() }
