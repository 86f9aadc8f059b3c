package san

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/wake"
)

// Kinds are iscsi and fc of this host.
func Kinds(host volume.Host, objects Objects, changed wake.Signal) []NodeKind {
	parts := Parts{Run: command.New(), Objects: objects, System: Host(), Changed: changed}
	return []NodeKind{NewISCSI(host, parts), NewFC(host, parts)}
}

// Host is the storage side of this host.
func Host() System {
	return System{
		Sys: "/sys", Dev: "/dev", Run: "/run", Databases: []string{"/etc/iscsi", "/var/lib/iscsi"},
		Write: writeFile, Claimed: claimed, Events: events,
	}
}

func writeFile(path, data string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(data)
	return errors.Join(err, f.Close())
}

// claimed opens the device as file systems do, which only one may (open(2), O_EXCL for block devices).
func claimed(device string) (bool, error) {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: device, Err: err}
	}
	return false, unix.Close(fd)
}

// kernelGroup is the multicast group of the kernel's own events.
const kernelGroup = 1

// events receives the kernel's uevents.
func events() (<-chan struct{}, func(), error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot listen to the kernel's device events: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot listen to the kernel's device events: %w", err), unix.Close(fd))
	}
	f := os.NewFile(uintptr(fd), "uevents") // pollable, so that Close ends a Read
	changed := wake.New()
	var reader sync.WaitGroup
	reader.Go(func() {
		buffer := make([]byte, 1<<16)
		for {
			if _, err := f.Read(buffer); err != nil && !errors.Is(err, unix.ENOBUFS) { // that is a loss, after which the caller looks too
				return
			}
			changed.Send()
		}
	})
	return changed, func() { _ = f.Close(); reader.Wait() }, nil
}
