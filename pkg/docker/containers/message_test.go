package containers

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestMessageRoot: a container with write access to its message's directory cannot make another host file its message.
func TestMessageRoot(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Mkdir(filepath.Join(dir, "sub"), 0o700), os.WriteFile(filepath.Join(dir, "sub", "end"), []byte("why"), 0o600),
		os.Symlink(secret, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{`sub\end`: "why", "link": "", "sub": "", "gone": "", `..\secret`: "", secret: ""} {
		if got := readHead(dir, path, 100); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := readHead(filepath.Join(dir, "gone"), "x", 100); got != "" {
		t.Errorf("without a directory: %q", got)
	}
}
