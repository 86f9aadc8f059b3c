// Package mount is what the kernel mounts for volumes: memory, and single files and directories below other names.
package mount

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"
)

// Mounter is what the kernel does for volumes. Each method is one call. Its methods may be called concurrently.
type Mounter interface {
	// Tmpfs mounts memory at dir with the options of tmpfs(5).
	Tmpfs(dir, options string) error
	// Bind mounts the open source, whatever its name means by now, at target, which exists. Both are directories, or neither is.
	Bind(source *os.File, target string) error
	// Unmount removes the topmost mount from target, without following links. Nothing mounted there is no error.
	Unmount(target string) error
	// Force is Unmount for a server that does not answer: requests that wait for it fail, and what was not written is lost.
	Force(target string) error
	// IsMount says whether something is mounted at path; false when path does not exist.
	IsMount(path string) (bool, error)
	// Has is IsMount without a look at path, which may hang: by the mount table, as it was after the last mount or unmount. That a directory above
	// was renamed since does not show; who deletes asks Below.
	Has(path string) (bool, error)
	// Below lists what is mounted at dir or below it, in the order of mounting.
	Below(dir string) ([]string, error)
}

// Links are the links of a file system. They never follow what is at the path itself.
type Links interface {
	// Read returns what the link at path leads to, as it is written there; false: there is no link, or nothing at all.
	Read(path string) (target string, ok bool, err error)
	// Remove removes the link at path, and nothing of what it leads to. No link there is no error.
	Remove(path string) error
}

// Linked is the Mounter of Windows: drivers of volumes make links, and nothing else is ever mounted.
type Linked struct{ Links }

// Tmpfs returns errors.ErrUnsupported.
func (Linked) Tmpfs(string, string) error { return errors.ErrUnsupported }

// Bind returns errors.ErrUnsupported.
func (Linked) Bind(*os.File, string) error { return errors.ErrUnsupported }

// Unmount removes a link.
func (l Linked) Unmount(target string) error { return l.Remove(target) }

// Force removes a link: that waits for no server.
func (l Linked) Force(target string) error { return l.Remove(target) }

// IsMount says whether a link is at path.
func (l Linked) IsMount(path string) (bool, error) {
	_, ok, err := l.Read(path)
	return ok, err
}

// Has is IsMount: a link is read without a look at what it leads to.
func (l Linked) Has(path string) (bool, error) { return l.IsMount(path) }

// Below returns nothing: no one lists links, and most are not of drivers.
func (Linked) Below(string) ([]string, error) { return nil, nil }

// readLink implements Links.Read. Junctions and folders that a volume is mounted in are irregular files to Go.
func readLink(path string) (target string, ok bool, err error) {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil || fi.Mode()&(fs.ModeSymlink|fs.ModeIrregular) == 0 {
		return "", false, err
	}
	if target, err = os.Readlink(path); err != nil {
		return "", false, fmt.Errorf("%s is a link that cannot be read: %w", path, err)
	}
	return target, true, nil
}

// Memory mounts memory at dir unless something is mounted there already. With mayFail a missing permission to mount is not an error: the
// volume stays on disk, and the log says so.
func Memory(m Mounter, dir, options string, mayFail bool) error {
	mounted, err := m.IsMount(dir)
	if err != nil || mounted {
		return err
	}
	err = m.Tmpfs(dir, options)
	if err != nil && mayFail && errors.Is(err, fs.ErrPermission) {
		klog.InfoS("Keeping a volume on disk instead of in memory: this kubelet is not allowed to mount", "directory", dir, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot mount memory: %w", err)
	}
	return nil
}

// parseMountinfo returns the mount points that stand in a /proc/PID/mountinfo at dir or below it, in order (proc_pid_mountinfo(5)).
func parseMountinfo(data []byte, dir string) []string {
	var out []string
	for line := range bytes.Lines(data) {
		field := mountPoint(line)
		if !bytes.HasPrefix(field, []byte(dir)) && !bytes.ContainsRune(field, '\\') { // nearly all of a node's mounts
			continue
		}
		point := strings.TrimSuffix(unescape(string(field)), "//deleted")
		if point == dir || strings.HasPrefix(point, dir+string(filepath.Separator)) {
			out = append(out, point)
		}
	}
	return out
}

// mountPoint is the fifth field of a line.
func mountPoint(line []byte) []byte {
	i := 0
	for field := range bytes.FieldsSeq(line) {
		if i++; i == 5 {
			return field
		}
	}
	return nil
}

// unescape undoes the \ooo that the kernel writes for space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && octal(s[i+1]) && octal(s[i+2]) && octal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func octal(c byte) bool { return c >= '0' && c <= '7' }
