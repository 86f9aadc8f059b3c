package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepeat: two checkouts of one commit, in directories with different names, give the same release. It takes minutes, so it runs only with
// WINKUBE_RELEASE=1.
func TestRepeat(t *testing.T) {
	if os.Getenv("WINKUBE_RELEASE") == "" {
		t.Skip("set WINKUBE_RELEASE=1 to build two releases")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	var releases []string
	for _, name := range []string{"one", "a/longer/path"} {
		checkout := filepath.Join(t.TempDir(), filepath.FromSlash(name))
		clone := exec.CommandContext(t.Context(), "git", "clone", "--quiet", "--no-hardlinks", root, checkout)
		clone.Stderr = os.Stderr
		if err := clone.Run(); err != nil {
			t.Fatal(err)
		}
		src, err := readSource(t.Context(), checkout, "")
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(checkout, "_output", "release")
		if err := os.MkdirAll(out, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := src.make(t.Context(), part{}, out, io.Discard); err != nil {
			t.Fatal(err)
		}
		releases = append(releases, out)
	}
	one, two := sumsIn(t, releases[0]), sumsIn(t, releases[1])
	if one != two || strings.Count(one, "\n") < 10 {
		t.Errorf("the first release is\n%sthe second\n%s", one, two)
	}
	for line := range strings.Lines(one) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		data, err := os.ReadFile(filepath.Join(releases[1], name))
		if err != nil || sum(data) != want {
			t.Errorf("%s has sum %s, want %s (%v)", name, sum(data), want, err)
		}
	}
	t.Logf("both releases:\n%s", one)
}

func sumsIn(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, sumsName))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
