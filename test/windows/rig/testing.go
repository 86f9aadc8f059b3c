package rig

import (
	"os"
	"testing"
)

// Test opens a prefix for one test and closes it with the test. Without WINKUBE_WINE=1 in the environment the test is skipped: what runs
// under Wine runs in `make test-windows`.
func Test(t *testing.T, build int) *Prefix {
	t.Helper()
	if os.Getenv("WINKUBE_WINE") == "" {
		t.Skip("runs under Wine, in `make test-windows` (WINKUBE_WINE=1)")
	}
	p, err := Open(t.Context(), build)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}
