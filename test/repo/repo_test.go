// Package repo_test checks the repository against the layout rules of docs/design/architecture.md and the text rules of
// docs/style.md. It parses the source for both systems, so that results do not depend on the system that runs the test.
// Exceptions are next to each rule, with reasons; an exception that is no longer needed also fails.
package repo_test

import (
	"bytes"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/winkube/winkube/"

// systems are the supported systems.
var systems = []string{"linux", "windows"}

// source is one Go file.
type source struct {
	path, dir, base string // with slashes, relative to the repository's root
	test            bool
	suffix          string   // "linux" or "windows" if the file name has that suffix
	systems         []string // systems that it is built for
	imports         []string
	lines           int
	syntax          *ast.File
	positions       *token.FileSet
}

// sources returns every Go file of our module.
var sources = sync.OnceValues(func() ([]*source, error) {
	root := os.DirFS(filepath.Join("..", ".."))
	var all []*source
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == "." {
				return nil
			}
			_, nested := fs.Stat(root, path.Join(name, "go.mod"))
			if base := entry.Name(); base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || nested == nil {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		one, err := parse(name, text)
		all = append(all, one)
		return err
	})
	return all, err
})

func parse(name string, text []byte) (*source, error) {
	s := &source{path: name, dir: path.Dir(name), base: path.Base(name), test: strings.HasSuffix(name, "_test.go"), positions: token.NewFileSet()}
	stem := strings.TrimSuffix(strings.TrimSuffix(s.base, ".go"), "_test")
	for _, system := range systems {
		if strings.HasSuffix(stem, "_"+system) {
			s.suffix = system
		}
	}
	s.lines = bytes.Count(text, []byte("\n"))
	var err error
	if s.syntax, err = parser.ParseFile(s.positions, name, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	for _, spec := range s.syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		s.imports = append(s.imports, imported)
	}
	for _, system := range systems {
		if built(s, system) {
			s.systems = append(s.systems, system)
		}
	}
	return s, nil
}

// built reports whether s is part of a build for system, by its name and its //go:build line.
func built(s *source, system string) bool {
	if s.suffix != "" && s.suffix != system {
		return false
	}
	for _, group := range s.syntax.Comments {
		if group.Pos() > s.syntax.Package {
			break
		}
		for _, comment := range group.List {
			expr, err := constraint.Parse(comment.Text)
			if err == nil && !expr.Eval(func(tag string) bool {
				return tag == system || tag == "unix" && system == "linux" || tag == "amd64" || tag == "gc" || strings.HasPrefix(tag, "go1.")
			}) {
				return false
			}
		}
	}
	return true
}

func load(t *testing.T) []*source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("found only %d Go files: fix how this test finds the repository", len(all))
	}
	return all
}

// under reports whether dir is one of roots or below one.
func under(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") })
}

// excused looks up exceptions in a table and records which were used.
type excused struct {
	reasons map[string]string
	used    map[string]bool
}

func exceptions(reasons map[string]string) *excused {
	return &excused{reasons, map[string]bool{}}
}

func (e *excused) has(name string) bool {
	reason, ok := e.reasons[name]
	if ok {
		e.used[name] = true
	}
	return ok && reason != ""
}

func (e *excused) done(t *testing.T) {
	t.Helper()
	for name := range e.reasons {
		if !e.used[name] {
			t.Errorf("%s no longer needs an exception: remove it from the table", name)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatalf("the repository must have %s: %v", name, err)
	}
	return string(text)
}

func TestParse(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"a.go", "package a", "linux windows"},
		{"a_linux.go", "package a", "linux"},
		{"a_windows_test.go", "package a", "windows"},
		{"a.go", "//go:build windows\n\npackage a", "windows"},
		{"a.go", "//go:build !windows\n\npackage a", "linux"},
		{"a.go", "//go:build unix && amd64\n\npackage a", "linux"},
		{"a.go", "//go:build ignore\n\npackage a", ""},
		{"a_linux.go", "//go:build windows\n\npackage a", ""},
		{"a.go", "package a\n\n//go:build windows", "linux windows"},
	} {
		s, err := parse(test.name, []byte(test.text))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.systems, " "); got != test.want {
			t.Errorf("%s %q is built for %q, want %q", test.name, test.text, got, test.want)
		}
	}
}
