package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const branches = `package a

func f(os string, q *query) int {
	if os == "windows" {
		return 1
	}
	if os != "windows" {
		return 2
	} else {
		return 3
	}
	if os == "linux" || os == "windows" {
		return 4
	}
	if q.ok && q.Windows() {
		return 5
	}
	if !q.Windows() {
		return 6
	}
	switch os {
	case "windows":
		return 7
	case "linux":
		return 8
	}
	return 9
}

func planWindows() int {
	return 10
}
`

// TestWindowsSpans checks for each return in the source above whether it is Windows-specific.
func TestWindowsSpans(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte(branches), 0o644); err != nil {
		t.Fatal(err)
	}
	spans, err := windowsSpans(filepath.Join(dir, "a.go"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, line := range strings.Split(branches, "\n") {
		column := strings.Index(line, "return") + 1
		if column == 0 {
			continue
		}
		b := &block{from: position{i + 1, column}, to: position{i + 1, len(line) + 1}}
		for _, s := range spans {
			if s.holds(b) {
				got = append(got, strings.TrimPrefix(strings.TrimSpace(line), "return "))
				break
			}
		}
	}
	if want := "[1 3 5 7 10]"; fmt.Sprint(got) != want {
		t.Errorf("for Windows are %v, want %s", got, want)
	}
}

func TestMeasure(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pkg/x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a.go": branches, "b_windows.go": "package x\n"} {
		if err := os.WriteFile(filepath.Join(root, "pkg/x", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	blocks := map[string]*block{}
	for _, profile := range []string{
		"mode: set\n" + module + "pkg/x/a.go:4.21,6.3 1 0\n" + module + "pkg/x/a.go:7.21,9.3 1 1\n" + module + "pkg/x/b_windows.go:1.1,9.9 3 0\n",
		"mode: set\n" + module + "pkg/x/a.go:4.21,6.3 1 1\n" + module + "pkg/x/b_windows.go:10.1,12.9 2 1\n",
	} {
		if err := readProfile(strings.NewReader(profile), blocks); err != nil {
			t.Fatal(err)
		}
	}
	shares, missed, err := measure(root, blocks)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := *shares["pkg/x"], (share{tagged: 5, taggedRan: 2, branches: 1, branchesRan: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if want := "[pkg/x/b_windows.go:1]"; fmt.Sprint(missed) != want {
		t.Errorf("missed are %v, want %s", missed, want)
	}
	if err := readProfile(strings.NewReader("nonsense\n"), blocks); err == nil {
		t.Error("a line that is no profile was taken")
	}
}

// TestMerge: counts of a program built from older sources are not added to those of current tests.
func TestMerge(t *testing.T) {
	tests, programs := map[string]*block{}, map[string]*block{}
	for text, into := range map[string]map[string]*block{
		"m/a.go:1.1,2.2 3 0\nm/a.go:5.1,6.2 1 1\n":                     tests,
		"m/a.go:1.1,2.2 3 4\nm/a.go:7.1,8.2 2 1\nm/b.go:1.1,2.2 1 1\n": programs,
	} {
		if err := readProfile(strings.NewReader(text), into); err != nil {
			t.Fatal(err)
		}
	}
	merge(tests, programs)
	if len(tests) != 3 || tests["m/a.go:1.1,2.2 3"].executed != 4 || tests["m/b.go:1.1,2.2 1"] == nil {
		t.Errorf("merged: %v", tests)
	}
}
