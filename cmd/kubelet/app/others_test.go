package app

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFlagsOfOthers: what the page says about flags of cri-dockerd and kubeadm is what the program does.
func TestFlagsOfOthers(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/flags-of-others.md")
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)` \\| ([a-z ]+) \\|").FindAllStringSubmatch(string(page), -1) {
		name, want := row[1], row[2]
		seen = append(seen, want)
		_, fs := parse(t)
		got := "works"
		switch f := fs.Lookup(name); {
		case f == nil:
			got = "refused"
		case f.Deprecated != "":
			got = "no effect"
		}
		if got != want {
			t.Errorf("--%s: the program: %s, the page: %s", name, got, want)
		}
		if _, _, err := tryParse("linux", "--"+name+"=x"); want == "refused" && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("--%s is refused by %v", name, err)
		}
	}
	for _, want := range []string{"works", "no effect", "refused"} {
		if !slices.Contains(seen, want) {
			t.Errorf("the page has no flag with %q", want)
		}
	}
	if rows := strings.Count(string(page), "\n| `--"); rows != len(seen) {
		t.Errorf("the page has %d flags, of which %d are read", rows, len(seen))
	}
}
