package access

import (
	"os"
	"path/filepath"
	"testing"
)

func TestGroupOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o644); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, known := GroupOf(fi); known {
		t.Error("a file has a Unix group")
	}
}

// TestSetAccessRefused: what cannot be an access list is an error. That Windows applies one is not seen under Wine.
func TestSetAccessRefused(t *testing.T) {
	dir := t.TempDir()
	for _, sddl := range []string{"no list", "O:BA", "D:P(A;;FR;;;no-sid)"} { // no SDDL; an owner and no list; a list for an unknown account
		if err := setList(dir, sddl); err == nil {
			t.Errorf("%q was set", sddl)
		}
	}
	if err := setList(filepath.Join(dir, "none"), "D:P(A;;FA;;;SY)"); err == nil {
		t.Error("the list of a file that is not there was set")
	}
}
