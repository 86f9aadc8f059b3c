// Package host holds the facts about this machine: they go into the Node object, into admission and into statistics. It decides
// nothing but which of the machine's addresses is the node's, and that is pure (address.go).
//
//	/proc, registry, system calls --> Facts, Disk, Addresses --> node, admit, stats
package host

import (
	"runtime"
	"time"
)

// Facts describes this machine. Everything but Memory, Swap and HugePages stays the same until a reboot.
type Facts struct {
	Hostname      string // lower case, as node names must be
	OS            string // "linux" or "windows"
	Arch          string // as in GOARCH
	OSImage       string // a name for people: "Debian GNU/Linux 12 (bookworm)", "Windows Server 2022 Datacenter"
	KernelVersion string // 6.1.0-18-amd64; 10.0.20348.2700 on Windows
	MachineID     string // of the installation; the host name on Windows, as upstream has it
	SystemUUID    string // of the hardware, "" where the firmware or our rights do not give it
	BootID        string // differs after each boot
	// Windows only. Major, Minor and Build as in 10.0.14393 (Server 2016), UBR is the patch level after them.
	WindowsMajor, WindowsMinor, WindowsBuild, WindowsUBR int
	CPUs                                                 int               // logical processors of the whole machine, all processor groups
	Memory                                               uint64            // bytes
	Swap                                                 uint64            // bytes; 0 on Windows, whose page files are no swap for pods
	HugePages                                            map[uint64]uint64 // bytes reserved, by page size in bytes; nil on Windows
}

// Disk is the use of one file system. Bytes, and files on Linux (0 on Windows, which has no such limit).
type Disk struct {
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
}

// Read collects the facts. It fails only where a fact is missing without which no node can be described: host name, memory, OS version.
func Read() (Facts, error) {
	f := Facts{OS: runtime.GOOS, Arch: runtime.GOARCH}
	return f, read(&f)
}

// DiskUsage reads the file system on which path, which must exist, lies.
func DiskUsage(path string) (Disk, error) { return diskUsage(path) }

// SameDisk says whether two paths, which must exist, lie on one file system.
func SameDisk(a, b string) (bool, error) { return sameDisk(a, b) }

// BootTime says when the machine started.
func BootTime() (time.Time, error) { return bootTime() }

// Elevated says whether this process may administer the machine: root, or a member of Administrators with its full token.
func Elevated() (bool, error) { return elevated() }
