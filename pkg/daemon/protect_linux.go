package daemon

import (
	"fmt"
	"os"
	"syscall"
)

// othersWrite are the write permissions of group and others.
const othersWrite = 0o022

func protectDir(dir string) (changed bool, err error) {
	if err := os.Mkdir(dir, 0o755); err == nil {
		return true, nil
	} else if !os.IsExist(err) {
		return false, err
	}
	if err := checkOwnerOf(dir); err != nil {
		return false, err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return false, err
	}
	if !info.IsDir() {
		return false, fmt.Errorf("%s is not a directory", dir)
	}
	if info.Mode()&othersWrite == 0 {
		return false, nil
	}
	return true, os.Chmod(dir, info.Mode().Perm()&^othersWrite)
}

func checkOwnerOf(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could change it at any time; want root: check what it is, then remove it or run: chown root %[1]s", path, stat.Uid)
	}
	return nil
}

// RemoveLater removes a file: on Linux even that of a running program.
func RemoveLater(path string) (moved string, err error) { return path, os.Remove(path) }
