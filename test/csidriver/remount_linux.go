package csidriver

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// remountReadOnly makes one mount read-only.
func remountReadOnly(target string) error {
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// copyOwner gives a file the owner and group in info.
func copyOwner(info fs.FileInfo, target string) error {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return os.Lchown(target, int(stat.Uid), int(stat.Gid))
	}
	return nil
}
