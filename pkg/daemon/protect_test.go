package daemon

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestProtectedDirectory: only SYSTEM and Administrators have rights, nothing is inherited from above, and everything below inherits.
func TestProtectedDirectory(t *testing.T) {
	list, found := strings.CutPrefix(protectedDirectory, "O:BAG:BAD:PAI")
	if !found {
		t.Fatalf("%s: want owner and group Administrators, and a protected list", protectedDirectory)
	}
	entries := regexp.MustCompile(`\((\w+);(\w*);(\w+);;;(\w+)\)`).FindAllStringSubmatch(list, -1)
	accounts := ""
	for _, e := range entries {
		if e[1] != "A" || e[2] != "OICI" || e[3] != "FA" {
			t.Errorf("entry %s: want full access, inherited by files and directories", e[0])
		}
		accounts += e[4] + " "
	}
	if accounts != "SY BA " || len(strings.Join(regexp.MustCompile(`\([^)]*\)`).FindAllString(list, -1), "")) != len(list) {
		t.Errorf("accounts %q in %s, want SYSTEM and Administrators", accounts, list)
	}
}

func TestCheckOwner(t *testing.T) {
	for owner, trusted := range map[string]bool{"S-1-5-18": true, "S-1-5-32-544": true, "S-1-5-21-1-2-3-500": true, "S-1-5-21-1-2-3-1001": false, "S-1-5-32-545": false, "S-1-1-0": false} {
		err := checkOwner(`C:\k`, owner, "S-1-5-21-1-2-3-500")
		if (err == nil) != trusted || err != nil && !strings.Contains(err.Error(), `C:\k belongs to account `+owner) {
			t.Errorf("%s: %v", owner, err)
		}
	}
}

// TestProtectDir: a second call changes nothing; a non-directory is refused.
func TestProtectDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "k")
	if changed, err := ProtectDir(dir); err != nil || !changed {
		t.Fatalf("%t, %v", changed, err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "is not a directory", "relative": "want an absolute path"} {
		if _, err := ProtectDir(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestCopyProgram replaces a program, keeps the previous one, and does nothing the second time.
func TestCopyProgram(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"from": "2", "to": "1", "to.new": "planted"} {
		if err := os.WriteFile(path(name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []bool{true, false} {
		if changed, err := CopyProgram(path("from"), path("to")); err != nil || changed != want {
			t.Errorf("%t, %v; want %t", changed, err, want)
		}
	}
	for name, want := range map[string]string{"to": "2", "to.old": "1"} {
		if text, err := os.ReadFile(path(name)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if exists(path("to.new")) {
		t.Error("to.new is left")
	}
	if _, err := CopyProgram(path("none"), path("to")); err == nil {
		t.Error("a program that is not there was copied")
	}
}
