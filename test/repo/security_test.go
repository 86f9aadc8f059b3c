package repo_test

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityPage: each test that docs/reference/security.md refers to exists in the package that it names.
func TestSecurityPage(t *testing.T) {
	have := map[string]bool{}
	for _, s := range load(t) {
		if !s.test {
			continue
		}
		for _, decl := range s.syntax.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				have[path.Base(s.dir)+"."+f.Name.Name] = true
			}
		}
	}
	rows := 0
	for line := range strings.Lines(read(t, "docs/reference/security.md")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 6 || strings.HasPrefix(cells[1], " ---") || strings.Contains(cells[4], " test ") {
			continue
		}
		rows++
		owner := ""
		for _, match := range regexp.MustCompile("`(?:(\\w+)\\.)?((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(cells[4], -1) {
			if match[1] != "" {
				owner = match[1]
			}
			if name := owner + "." + match[2]; !have[name] {
				t.Errorf("docs/reference/security.md names %s, which does not exist", name)
			}
		}
		if owner == "" && !strings.Contains(cells[4], "none needed") && !strings.Contains(cells[4], "open") {
			t.Errorf("docs/reference/security.md names no test: %s", line)
		}
	}
	if rows < 20 {
		t.Errorf("found only %d rows: fix how this test reads the table", rows)
	}
}
