package host

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// readLoad takes the kernel's own times, in which system contains idle.
func readLoad() (Load, error) {
	var idle, system, user windows.Filetime
	proc := windows.NewLazySystemDLL("kernel32.dll").NewProc("GetSystemTimes")
	if ok, _, err := proc.Call(uintptr(unsafe.Pointer(&idle)), uintptr(unsafe.Pointer(&system)), uintptr(unsafe.Pointer(&user))); ok == 0 {
		return Load{}, fmt.Errorf("cannot read the processors' time: %w", err)
	}
	span := func(f windows.Filetime) uint64 { return uint64(f.HighDateTime)<<32 | uint64(f.LowDateTime) }
	status, err := readMemory()
	used := less(status.totalPhys, status.availPhys)
	return Load{
		CPU:    time.Duration(less(span(system)+span(user), span(idle))) * 100,
		Memory: used, WorkingSet: used, Capacity: status.totalPhys,
		Commit: less(status.totalPage, status.availPage), CommitLimit: status.totalPage,
	}, err
}
