package volume

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
)

// mounter is what the kernel does for volumes. Each method is one call.
type mounter interface {
	// tmpfs mounts memory at dir with the options of tmpfs(5).
	tmpfs(dir, options string) error
	// bind mounts the open source, whatever names mean by now, at target, which exists and is of the same sort.
	bind(source *os.File, target string) error
	// unmount takes the uppermost mount off target, without following links. Not mounted is no error.
	unmount(target string) error
	// isMount says whether something is mounted at path; false when path does not exist.
	isMount(path string) (bool, error)
	// below lists what is mounted at dir or below it, in the order of mounting.
	below(dir string) ([]string, error)
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
