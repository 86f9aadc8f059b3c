package repo_test

import (
	"slices"
	"strings"
	"testing"
)

// pure are packages that only compute, so that their tests need neither a host nor an engine, on any system.
var pure = []string{"pkg/docker/accounts", "pkg/docker/convert", "pkg/docker/identity"}

// reaching are imports with which code accesses anything outside its process.
var reaching = []string{
	"io/fs", "net", "net/http", "os", "os/exec", "syscall", "golang.org/x/sys/unix", "golang.org/x/sys/windows", "github.com/docker/docker/client",
	module + "pkg/command", module + "pkg/docker/engine", module + "pkg/host",
}

func TestPurePackages(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range load(t) {
		if s.test || !slices.Contains(pure, s.dir) {
			continue
		}
		seen[s.dir] = true
		for _, imported := range s.imports {
			if slices.Contains(reaching, imported) {
				t.Errorf("%s imports %s: %s does no I/O; give it the value", s.path, imported, strings.TrimPrefix(s.dir, "pkg/"))
			}
		}
	}
	for _, dir := range pure {
		if !seen[dir] {
			t.Errorf("%s does not exist: remove it from the table", dir)
		}
	}
}
