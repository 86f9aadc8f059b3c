// Package paths checks and makes names and directories of volumes: what may be the name of a file, how a hostPath and a mountPath are written.
package paths

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// DirMode is the mode of the agent's own directories: other users of the host may not enter them. It does not stop containers, because
// the engine mounts the directories below.
const DirMode fs.FileMode = 0o750

// MakeDir makes dir with its parents and gives it mode, whatever the umask is. It leaves an existing directory as it is.
func MakeDir(dir string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(dir), DirMode); err != nil {
		return err
	}
	err := os.Mkdir(dir, mode.Perm())
	if err == nil {
		return os.Chmod(dir, mode)
	}
	if fi, statErr := os.Lstat(dir); statErr == nil && fi.IsDir() {
		return nil
	}
	return err
}

// Exists says whether a file is at path, links followed. A path that cannot be examined counts as missing.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Names returns the sorted entries of dir without hidden ones, none if dir does not exist.
func Names(dir string) (out []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Replace writes a file, readable by root alone, that is there as a whole or not at all. It is written as unfinished with a random end first, on the
// same file system; what a killed agent leaves of that name is the caller's to remove.
func Replace(path, unfinished string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(unfinished), filepath.Base(unfinished)+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// CheckElement says why name cannot be the name of one file or directory on platform; nil when it can.
func CheckElement(platform pod.Platform, name string) error {
	switch {
	case name == "", name == ".", name == "..":
		return fmt.Errorf("%q is not a file name", name)
	case strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("%q is not a file name: want no slash and no zero byte in it", name)
	case len(name) > 255:
		return fmt.Errorf("%q... is not a file name: want at most 255 bytes, have %d", name[:32], len(name))
	case platform.OS == "windows":
		return podspec.CheckWindowsName(name)
	}
	return nil
}

// CheckRelative says why p, with forward slashes, is not a path below the directory that it is relative to; nil when it is.
func CheckRelative(platform pod.Platform, p string) error {
	if path.IsAbs(p) {
		return fmt.Errorf("%q is an absolute path; want a relative one", p)
	}
	for _, e := range strings.Split(p, "/") {
		if e == ".." {
			return fmt.Errorf("%q must not contain \"..\"", p)
		}
		if err := CheckElement(platform, e); err != nil {
			return err
		}
	}
	return nil
}

// Host returns a hostPath volume's path as the host writes it. Manifests for Windows have C:\x, C:/x, /x (drive C) and \\.\pipe\x.
func Host(platform pod.Platform, p string) (string, error) {
	if p == "" {
		return "", errors.New("hostPath.path is empty; want an absolute path")
	}
	if strings.ContainsRune(p, 0) {
		return "", fmt.Errorf("hostPath.path %q has a zero byte in it", p)
	}
	if platform.OS != "windows" {
		if !path.IsAbs(p) {
			return "", fmt.Errorf("hostPath.path %q is relative; want an absolute path", p)
		}
		return p, nil
	}
	w, err := podspec.WindowsPath(p)
	if err != nil {
		return "", fmt.Errorf("hostPath.path: %w", err)
	}
	return w, nil
}

// Container returns a mountPath as the container's system writes it.
func Container(platform pod.Platform, p string) (string, error) {
	switch {
	case p == "":
		return "", errors.New("mountPath is empty; want an absolute path")
	case platform.OS == "windows":
		return windowsTarget(p)
	case strings.Contains(p, ":"):
		return "", fmt.Errorf("mountPath %q must not contain ':'", p)
	case !path.IsAbs(p):
		return "/" + p, nil
	}
	return p, nil
}

// windowsTarget is a mountPath on Windows: on a drive, or a pipe.
func windowsTarget(p string) (string, error) {
	if !strings.ContainsAny(p, `:`) && !strings.HasPrefix(strings.ReplaceAll(p, "/", `\`), `\`) {
		p = "/" + p
	}
	w, err := podspec.WindowsPath(p)
	switch {
	case err != nil:
		return "", fmt.Errorf("mountPath: %w", err)
	case strings.HasPrefix(w, `\\`) && !podspec.IsPipe(w):
		return "", fmt.Errorf(`mountPath %q is a share; want a directory of the container like C:\data`, p)
	case strings.EqualFold(w, `C:\`):
		return "", fmt.Errorf(`mountPath %q is the drive of the system; want a directory like C:\data`, p)
	}
	return w, nil
}
