package probe

import (
	"fmt"
	"syscall"
)

func setLinger(fd uintptr, seconds int32) error {
	err := syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: seconds})
	if err != nil {
		return fmt.Errorf("cannot set SO_LINGER: %w", err)
	}
	return nil
}
