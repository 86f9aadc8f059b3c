package volume

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPlainDirectories(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o644); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if newMounter() != nil {
		t.Error("there is something to mount")
	}
	if _, known := groupOf(fi); known {
		t.Error("a file has a group of the Unix sort")
	}
	if got := spaceOf(fi); got.bytes != 5 {
		t.Errorf("5 bytes take %+v", got)
	}
}
