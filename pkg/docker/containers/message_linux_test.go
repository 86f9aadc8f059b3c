package containers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestMessageFiles: any file in the place of a termination message is read up to the limit, without waiting and without following links outside.
func TestMessageFiles(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), syscall.Mkfifo(at("pipe"), 0o600), os.Symlink(secret, at("link")), os.Symlink("/dev/zero", at("zero")),
		os.WriteFile(at("long"), []byte(strings.Repeat("x", 200)), 0o600), os.WriteFile(at("huge"), []byte("start"), 0o600), os.Truncate(at("huge"), 1<<40)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"pipe": "", "link": "", "zero": "", "long": strings.Repeat("x", 100), "huge": "start" + strings.Repeat("\x00", 95), "gone": ""} {
		if got := readHead("", at(name), 100); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if got := readHead(dir, name, 100); got != want {
			t.Errorf("%s below a root: %q, want %q", name, got, want)
		}
	}
}
