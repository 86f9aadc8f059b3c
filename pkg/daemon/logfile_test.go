package daemon

import (
	"fmt"
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
		{3, []string{"three"}, "0:three |1:one two "}, // a file of an earlier run goes on
		{3, []string{"a line that is longer than a file", "4"}, "0:4 |1:a line that is longer than a file |2:three "},
		{1, []string{"5", "6", "7", "8", "9"}, "0:9 |1:a line that is longer than a file |2:three "},
	} {
		write(step.keep, step.lines...)
		if got := have(); got != step.want {
			t.Errorf("after %q: %s, want %s", step.lines, got, step.want)
		}
	}
	// What cannot be moved away is written on, with a word about it.
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
