package host

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// WatchOOM reports each process that the kernel kills from now on because the machine, not only a cgroup, is out of
// memory, until ctx ends. An error says why it cannot watch, or can no longer.
func WatchOOM(ctx context.Context, tell func(Victim)) error {
	log, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0) // nonblocking, so that Close ends a Read
	if err != nil {
		return fmt.Errorf("cannot open the kernel's log: %w", err)
	}
	defer log.Close()
	if _, err := log.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("cannot find the end of the kernel's log: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = log.Close() })
	defer stop()
	err = readOOM(log, tell)
	if ctx.Err() != nil {
		return nil
	}
	return err
}
