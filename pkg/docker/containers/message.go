package containers

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/winkube/winkube/pkg/host"
)

// readHead reads the start of a file; "" if there is none. If root is set, others can write in it and path is below it. No link can lead outside the
// root, or outside the file's directory. Anything but a regular file counts as absent and cannot block the reader.
func readHead(root, path string, limit int64) string {
	if path == "" {
		return ""
	}
	if root == "" {
		root, path = filepath.Dir(path), filepath.Base(path)
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return ""
	}
	defer dir.Close()
	file, info, err := host.OpenBelow(dir, filepath.FromSlash(strings.ReplaceAll(path, `\`, "/")))
	if err != nil {
		return ""
	}
	defer file.Close()
	if !info.Mode().IsRegular() {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(data), "\uFFFD")
}

// tail keeps the last limit bytes written to it.
type tail struct {
	limit int
	data  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - t.limit; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.ToValidUTF8(string(t.data), "\uFFFD") }
