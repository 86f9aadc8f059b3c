package host

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// allGroups selects the processors of all groups: a group has at most 64.
const allGroups = 0xffff

// read takes the version from RtlGetVersion, which ignores compatibility settings, and from the registry the names that
// Windows keeps only there. As upstream, the machine ID is the host name.
func read(f *Facts) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("cannot read the host name: %w", err)
	}
	f.Hostname, f.MachineID = strings.ToLower(name), name
	v := windows.RtlGetVersion()
	f.WindowsMajor, f.WindowsMinor, f.WindowsBuild = int(v.MajorVersion), int(v.MinorVersion), int(v.BuildNumber)
	f.WindowsUBR = int(registryNumber(`SOFTWARE\Microsoft\Windows NT\CurrentVersion`, "UBR"))
	f.KernelVersion = fmt.Sprintf("%d.%d.%d.%d", f.WindowsMajor, f.WindowsMinor, f.WindowsBuild, f.WindowsUBR)
	f.OSImage = registryString(`SOFTWARE\Microsoft\Windows NT\CurrentVersion`, "ProductName")
	f.SystemUUID = strings.ToUpper(strings.Trim(registryString(`SYSTEM\HardwareConfig`, "LastConfig"), "{}"))
	started, _ := bootTime() // cannot fail
	f.BootID = bootID(registryNumber(`SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters`, "BootId"), started)
	f.CPUs = int(windows.GetActiveProcessorCount(allGroups))
	memory, err := readMemory()
	f.Memory = memory.totalPhys
	return err
}

func registryString(path, name string) string {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.QUERY_VALUE)
	if err != nil {
		return ""
	}
	defer key.Close()
	value, _, _ := key.GetStringValue(name)
	return value
}

func registryNumber(path, name string) uint64 {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.QUERY_VALUE)
	if err != nil {
		return 0
	}
	defer key.Close()
	value, _, _ := key.GetIntegerValue(name)
	return value
}

// memoryStatus is MEMORYSTATUSEX.
type memoryStatus struct {
	length, load                                                               uint32
	totalPhys, availPhys, totalPage, availPage, totalVirt, availVirt, availExt uint64
}

func readMemory() (memoryStatus, error) {
	status := memoryStatus{length: uint32(unsafe.Sizeof(memoryStatus{}))}
	proc := windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")
	if ok, _, err := proc.Call(uintptr(unsafe.Pointer(&status))); ok == 0 {
		return status, fmt.Errorf("cannot read the memory's size and use: %w", err)
	}
	return status, nil
}

func diskUsage(path string) (Disk, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return Disk{}, fmt.Errorf("cannot read the volume of %s: %w", path, err)
	}
	var available, total, free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &available, &total, &free); err != nil {
		return Disk{}, fmt.Errorf("cannot read the volume of %s: %w", path, err)
	}
	return Disk{Capacity: total, Available: available, Used: total - free}, nil
}

// sameDisk compares the mount points of the paths' volumes.
func sameDisk(a, b string) (bool, error) {
	var volumes [2]string
	for i, path := range []string{a, b} {
		name, err := windows.UTF16PtrFromString(path)
		var root [windows.MAX_PATH + 1]uint16
		if err == nil {
			err = windows.GetVolumePathName(name, &root[0], uint32(len(root)))
		}
		if err != nil {
			return false, fmt.Errorf("cannot find the volume of %s: %w", path, err)
		}
		volumes[i] = windows.UTF16ToString(root[:])
	}
	return strings.EqualFold(volumes[0], volumes[1]), nil
}

func bootTime() (time.Time, error) { return time.Now().Round(0).Add(-windows.DurationSinceBoot()), nil }

func elevated() (bool, error) { return windows.GetCurrentProcessToken().IsElevated(), nil }
