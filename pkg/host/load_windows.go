package host

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// readLoad reads the kernel's own times and figures.
func readLoad() (Load, error) {
	cpu, err := busy()
	if err != nil {
		return Load{}, fmt.Errorf("cannot read the processors' time: %w", err)
	}
	status, err := readMemory()
	used := less(status.totalPhys, status.availPhys)
	return Load{
		CPU:    cpu,
		Memory: used, WorkingSet: used, Capacity: status.totalPhys,
		Commit: less(status.totalPage, status.availPage), CommitLimit: status.totalPage,
	}, err
}

// busy returns the working time of all processors. GetSystemTimes covers only one group of at most 64 processors, and
// which one depends on the thread (Microsoft's page of it, elastic/beats#40926). So it is used only if the kernel does
// not report groups, as Wine's does not.
func busy() (sum time.Duration, err error) {
	groups, _, _ := windows.NewLazySystemDLL("kernel32.dll").NewProc("GetActiveProcessorGroupCount").Call()
	for group := range uint16(max(groups, 1)) { // 0: the call failed
		one, err := busyGroup(group)
		if err != nil {
			return busySystem()
		}
		sum += one
	}
	return sum, nil
}

// busySystem uses times in which system contains idle.
func busySystem() (time.Duration, error) {
	var idle, system, user windows.Filetime
	proc := windows.NewLazySystemDLL("kernel32.dll").NewProc("GetSystemTimes")
	if ok, _, err := proc.Call(uintptr(unsafe.Pointer(&idle)), uintptr(unsafe.Pointer(&system)), uintptr(unsafe.Pointer(&user))); ok == 0 {
		return 0, err
	}
	span := func(f windows.Filetime) uint64 { return uint64(f.HighDateTime)<<32 | uint64(f.LowDateTime) }
	return time.Duration(less(span(system)+span(user), span(idle))) * 100, nil
}

// processorPerformance is the class of system information that returns processorTimes.
const processorPerformance = 8

func busyGroup(group uint16) (time.Duration, error) {
	times := make([]processorTimes, max(windows.GetActiveProcessorCount(group), 1))
	proc := windows.NewLazySystemDLL("ntdll.dll").NewProc("NtQuerySystemInformationEx")
	if err := proc.Find(); err != nil {
		return 0, err
	}
	var length uint32
	status, _, _ := proc.Call(processorPerformance, uintptr(unsafe.Pointer(&group)), unsafe.Sizeof(group),
		uintptr(unsafe.Pointer(&times[0])), uintptr(len(times))*unsafe.Sizeof(times[0]), uintptr(unsafe.Pointer(&length)))
	if status != 0 {
		return 0, windows.NTStatus(status)
	}
	return worked(times[:length/uint32(unsafe.Sizeof(times[0]))]), nil
}
