package repo_test

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/page"
)

// TestDocumentedCommands: the commands in the pages exist: make targets and variables, programs, packages and tests.
func TestDocumentedCommands(t *testing.T) {
	pages, err := page.Files("../..")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../../Makefile")
	makefile := read(t, "Makefile")
	tests := map[string][]string{} // by directory
	for _, s := range load(t) {
		for _, decl := range s.syntax.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				tests[s.dir] = append(tests[s.dir], f.Name.Name)
			}
		}
	}
	found := 0
	for _, file := range pages {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Commands(string(text), "make", "go") {
			found++
			var wrong string
			switch {
			case c.Argv[0] == "make":
				wrong = badMake(makefile, c)
			case len(c.Argv) > 2 && (c.Argv[1] == "run" || c.Argv[1] == "test" || c.Argv[1] == "build"):
				wrong = badGo(tests, c)
			}
			if wrong != "" {
				t.Errorf("%s:%d: %s: %s", path.Base(file), c.Line, c.Text, wrong)
			}
		}
	}
	if found < 40 {
		t.Errorf("found only %d commands: fix how this test reads the pages", found)
	}
}

// TestNamedTests: every test that a page names between backquotes exists. Pages may abbreviate a name at its end.
func TestNamedTests(t *testing.T) {
	var have []string
	for _, s := range load(t) {
		for _, decl := range s.syntax.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				have = append(have, f.Name.Name)
			}
		}
	}
	found := 0
	for name, text := range pages(t) {
		if name == "docs/style.md" {
			continue
		}
		for _, match := range regexp.MustCompile("`[^`\n]*?\\b((?:Test|Fuzz)[A-Z]\\w*)[^`\n]*`").FindAllStringSubmatch(text, -1) {
			found++
			if !slices.ContainsFunc(have, func(one string) bool { return strings.HasPrefix(one, match[1]) }) {
				t.Errorf("%s names %s, which does not exist", name, match[1])
			}
		}
	}
	if found < 100 {
		t.Errorf("found only %d names: fix how this test reads them", found)
	}
}

// badMake returns which target is not in the Makefile, or which variable the Makefile does not mention.
func badMake(makefile string, c page.Command) string {
	for _, arg := range c.Argv[1:] {
		name, _, setting := strings.Cut(arg, "=")
		switch {
		case setting && !regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).MatchString(makefile):
			return "the Makefile has no setting " + name
		case !setting && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(arg)+`:`).MatchString(makefile):
			return "the Makefile has no target " + arg
		}
	}
	return ""
}

// badGo returns which package does not exist, or that no test matches -run or -skip.
func badGo(tests map[string][]string, c page.Command) string {
	var names []string
	wanted, fuzzy := "", false
	root := filepath.Join("..", "..")
	if i := slices.Index(c.Argv, "-C"); i > 0 && i+1 < len(c.Argv) {
		root = filepath.Join(root, filepath.FromSlash(c.Argv[i+1]))
	}
	for i, arg := range c.Argv {
		switch {
		case strings.HasPrefix(arg, "./"), strings.HasPrefix(arg, "cmd/"):
			dir := path.Clean(strings.TrimSuffix(arg, "/..."))
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(dir))); err != nil {
				return arg + " is not there"
			}
			for have, list := range tests {
				if have == dir || strings.HasSuffix(arg, "/...") && strings.HasPrefix(have, dir) {
					names = append(names, list...)
				}
			}
		case arg == "-run" && i+1 < len(c.Argv):
			wanted = c.Argv[i+1]
		case arg == "-fuzz":
			fuzzy = true
		}
	}
	if c.Argv[1] != "test" || wanted == "" || fuzzy {
		return ""
	}
	for _, one := range strings.Split(strings.ReplaceAll(wanted, `\|`, "|"), "|") {
		pattern, err := regexp.Compile(one)
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(names, pattern.MatchString) {
			return "no test there is called " + one
		}
	}
	return ""
}

func TestBadCommands(t *testing.T) {
	makefile := "up:\nconformance:\n## conformance: SIGS= FOCUS=\n"
	tests := map[string][]string{"test/e2e": {"TestFilled", "TestForkBomb"}}
	for line, want := range map[string]string{
		"make up":                  "",
		"make conformance FOCUS=x": "",
		"make start":               "the Makefile has no target start",
		"make conformance FOCI=x":  "the Makefile has no setting FOCI",
		"go test ./test/e2e -run 'TestFilled|Fork'": "",
		"go test ./test/e2e -run TestEmptied":       "no test there is called TestEmptied",
		"go test ./test/nowhere":                    "./test/nowhere is not there",
		"go run ./hack/clusters up":                 "./hack/clusters is not there",
	} {
		c := page.Commands("    "+line, "make", "go")[0]
		got := badMake(makefile, c)
		if c.Argv[0] == "go" {
			got = badGo(tests, c)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}
