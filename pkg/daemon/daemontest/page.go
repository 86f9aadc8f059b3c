// Package daemontest compares pages of the documentation with what the programs make of their tables.
package daemontest

import (
	"os"
	"strings"
	"testing"
)

// Page fails the test if the page at path is not want. With update it writes the page first.
func Page(t testing.TB, path, want string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ReplaceAll(string(have), "\r\n", "\n") != want {
		t.Errorf("%s differs from the program (run with -update)", path)
	}
}
