package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProtectDirOfOthers: a directory that others may write to is protected; one that another user owns is refused.
func TestProtectDirOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "k")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := ProtectDir(dir); err != nil || changed != want {
			t.Errorf("%t, %v; want %t", changed, err, want)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := ProtectDir(dir); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Errorf("%v", err)
	}
}
