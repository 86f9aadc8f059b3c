package programs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile(`\b([a-z/]+)\.(Test\w+)`)
	joinRow   = regexp.MustCompile(`"([^"]+)"`)
	rowInCode = regexp.MustCompile(`m\.(?:did|state)\((?:fmt\.Sprintf\()?"([^"]+)"( ?\+)?`)
)

// TestChecks: docs/reference/windows-checks.md names only existing checks, and names the checks that cover each
// feature.
func TestChecks(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/reference/windows-checks.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, tests := rowsOfJoin(t), 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(line, "---") || strings.Contains(line, "seen by") {
			continue
		}
		seen, reason, _ := strings.Cut(cells[3], "Not seen:")
		found := 0
		for _, m := range namedTest.FindAllStringSubmatch(seen, -1) {
			found++
			if !isTest(t, m[1], m[2]) {
				t.Errorf("%s: no package %s has a test %s", strings.TrimSpace(cells[1]), m[1], m[2])
			}
		}
		for _, m := range joinRow.FindAllStringSubmatch(seen, -1) {
			found++
			if !rows.MatchString(m[1]) {
				t.Errorf("%s: the table of package join has no row %q", strings.TrimSpace(cells[1]), m[1])
			}
		}
		if tests += found; found == 0 && !strings.Contains(seen, "page") {
			t.Errorf("%s: no check; not seen:%s", strings.TrimSpace(cells[1]), reason)
		}
	}
	if tests < 60 {
		t.Errorf("%d checks are named: the page is not read as it should be", tests)
	}
}

// rowsOfJoin returns a pattern for the rows of package join's table.
func rowsOfJoin(t *testing.T) *regexp.Regexp {
	t.Helper()
	paths, err := filepath.Glob("../join/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, path := range paths {
		code, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range rowInCode.FindAllStringSubmatch(string(code), -1) {
			row := regexp.MustCompile(`%[sd]`).ReplaceAllString(regexp.QuoteMeta(m[1]), `\S+`)
			if m[2] != "" { // the rest is variable
				row += `\S+`
			}
			rows = append(rows, row)
		}
	}
	if len(rows) < 40 {
		t.Fatalf("package join has %d rows: the pattern no longer fits its code", len(rows))
	}
	return regexp.MustCompile("^(" + strings.Join(rows, "|") + ")$")
}

// isTest reports whether a package has a test. Packages in pkg, of a program or below test/windows are named by their last
// element, or any package by its path.
func isTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	for _, pattern := range []string{"../../../../" + pkg, "../../../../pkg/" + pkg, "../../../../pkg/*/" + pkg, "../../../../cmd/*/" + pkg, "../" + pkg, "../../simulators/" + pkg, "../../" + pkg} {
		paths, err := filepath.Glob(pattern + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			code, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(code), "func "+name+"(") {
				return true
			}
		}
	}
	return false
}
