//go:build linux

package traffic

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// within runs do in a network namespace; sockets that it opens stay in that namespace.
func within(name string, do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	other, err := netns.GetFromName(name)
	if err != nil {
		return fmt.Errorf("cannot find namespace %s: %w", name, err)
	}
	defer other.Close()
	if err := netns.Set(other); err != nil {
		return err
	}
	defer func() { _ = netns.Set(own) }()
	return do()
}
