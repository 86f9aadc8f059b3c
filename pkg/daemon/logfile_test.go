package daemon

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	write := func(keep int, lines ...string) {
		t.Helper()
		r := &rotated{path: path, limit: 10, keep: keep}
		for _, line := range lines {
			if n, err := r.Write([]byte(line + "\n")); err != nil || n != len(line)+1 {
				t.Fatalf("%q: %d, %v", line, n, err)
			}
		}
		if err := r.file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	have := func() string {
		var out []string
		for i := range 4 {
			if data, err := os.ReadFile((&rotated{path: path}).numbered(i)); err == nil {
				out = append(out, fmt.Sprintf("%d:%s", i, strings.ReplaceAll(string(data), "\n", " ")))
			}
		}
		return strings.Join(out, "|")
	}
	for _, step := range []struct {
		keep  int
		lines []string
		want  string
	}{
		{3, []string{"one", "two"}, "0:one two "},
		{3, []string{"three"}, "0:three |1:one two "}, // continues a file of an earlier run
		{3, []string{"a line that is longer than a file", "4"}, "0:4 |1:a line that is longer than a file |2:three "},
		{1, []string{"5", "6", "7", "8", "9"}, "0:9 |1:a line that is longer than a file |2:three "},
	} {
		write(step.keep, step.lines...)
		if got := have(); got != step.want {
			t.Errorf("after %q: %s, want %s", step.lines, got, step.want)
		}
	}
	// A file that cannot be renamed continues to be written, with a message about it.
	if err := os.MkdirAll(filepath.Join(path+".1x", "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path + ".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".1x", path+".1"); err != nil {
		t.Fatal(err)
	}
	write(2, "10", "11", "12", "13", "14")
	nowhere := &rotated{path: filepath.Join(path+".1", "no", "such.log")}
	if _, err := nowhere.Write([]byte("a line for stderr\n")); err == nil {
		t.Error("written to a file that cannot be made")
	}
	if data, err := os.ReadFile(path); err != nil || !strings.Contains(string(data), "cannot be rotated now") || !strings.HasSuffix(string(data), "14\n") {
		t.Errorf("%q, %v", data, err)
	}
}

// TestRotatedUnderReader: a log is rotated while a reader that permits renaming has it open, as os.Root's files do on Windows. pkg/server opens its
// files that way.
func TestRotatedUnderReader(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	r := &rotated{path: filepath.Join(root.Name(), "a.log"), limit: 10, keep: 3}
	for i, line := range []string{"one\n", "the second\n", "the third\n"} {
		if _, err := r.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		reader, err := root.Open("a.log")
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if got, err := io.ReadAll(reader); err != nil || string(got) != line {
				t.Errorf("reader %d has %q, %v; want %q", i, got, err, line)
			}
			_ = reader.Close()
		}()
	}
	if err := r.file.Close(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"the third\n", "the second\n", "one\n"} {
		if got, err := os.ReadFile(r.numbered(i)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", r.numbered(i), got, err, want)
		}
	}
}
