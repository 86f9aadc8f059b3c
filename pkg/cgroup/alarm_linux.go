package cgroup

import (
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// watchUsage calls ring once when the memory use of a v1 cgroup crosses bytes in either direction. stop ends the watch.
func watchUsage(dir string, bytes uint64, ring func()) (stop func(), err error) {
	usage, err := os.Open(path.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		return nil, err
	}
	defer usage.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	event := os.NewFile(uintptr(fd), "eventfd")
	if err := (disk{}).write(path.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d %d", fd, usage.Fd(), bytes)); err != nil {
		event.Close()
		return nil, err
	}
	go func() { // ends when stop closes event
		if _, err := io.ReadFull(event, make([]byte, 8)); err == nil {
			ring()
		}
	}()
	return func() { event.Close() }, nil
}

// watchPressure calls ring each time processes have waited for a resource as trigger specifies. stop ends the watch and removes the
// trigger.
func watchPressure(file, trigger string, ring func()) (stop func(), err error) {
	pressure, err := unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: file, Err: err}
	}
	if _, err := unix.Write(pressure, append([]byte(trigger), 0)); err != nil {
		unix.Close(pressure)
		return nil, &os.PathError{Op: "write", Path: file, Err: err}
	}
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(pressure)
		return nil, os.NewSyscallError("eventfd", err)
	}
	go func() { // ends when stop writes to end
		defer unix.Close(pressure)
		defer unix.Close(end)
		for {
			polled := []unix.PollFd{{Fd: int32(pressure), Events: unix.POLLPRI}, {Fd: int32(end), Events: unix.POLLIN}}
			if _, err := unix.Poll(polled, -1); err == unix.EINTR {
				continue
			} else if err != nil || polled[1].Revents != 0 || polled[0].Revents&unix.POLLERR != 0 { // POLLERR: its cgroup was removed
				return
			}
			ring()
		}
	}()
	return func() { _, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }, nil
}
