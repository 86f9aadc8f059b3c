package main

import (
	"bufio"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// block is a basic block, as the go command counts it.
type block struct {
	file                 string // with the module path
	from, to             position
	statements, executed int
}

type position struct{ line, column int }

func (p position) before(q position) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}

// readProfile reads a profile of go test -coverprofile and adds its counts to into.
func readProfile(in io.Reader, into map[string]*block) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "mode:") || line == "" {
			continue
		}
		colon := strings.LastIndex(line, ":")
		if colon < 0 {
			return fmt.Errorf("cannot read profile line %q", line)
		}
		b := block{file: line[:colon]}
		if _, err := fmt.Sscanf(line[colon+1:], "%d.%d,%d.%d %d %d", &b.from.line, &b.from.column, &b.to.line, &b.to.column, &b.statements, &b.executed); err != nil {
			return fmt.Errorf("cannot read profile line %q: %w", line, err)
		}
		key := line[:strings.LastIndex(line, " ")]
		if have := into[key]; have != nil {
			have.executed += b.executed
		} else {
			into[key] = &b
		}
	}
	return lines.Err()
}

// merge adds the counts of programs that may be built from older sources. In files that the tests' profiles cover, it ignores unknown blocks.
func merge(tests, programs map[string]*block) {
	known := map[string]bool{}
	for _, b := range tests {
		known[b.file] = true
	}
	for key, b := range programs {
		if have := tests[key]; have != nil {
			have.executed += b.executed
		} else if !known[b.file] {
			tests[key] = b
		}
	}
}

// span is a part of a file that is specific to Windows.
type span struct{ from, to position }

func (s span) holds(b *block) bool { return !b.from.before(s.from) && !s.to.before(b.to) }

// windowsSpans returns the Windows-specific parts of a file: all of a *_windows.go, otherwise the branches of an if or case that
// checks for Windows.
func windowsSpans(path string) ([]span, error) {
	if strings.HasSuffix(path, "_windows.go") {
		return []span{{to: position{line: 1 << 30}}}, nil
	}
	files := token.NewFileSet()
	syntax, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // from a program built from older sources, see merge
	}
	if err != nil {
		return nil, err
	}
	var spans []span
	between := func(start, end token.Pos) {
		from, to := files.Position(start), files.Position(end)
		spans = append(spans, span{position{from.Line, from.Column}, position{to.Line, to.Column}})
	}
	add := func(n ast.Node) { between(n.Pos(), n.End()) }
	ast.Inspect(syntax, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.IfStmt:
			if wanted, yes := asksForWindows(n.Cond); wanted && yes {
				add(n.Body)
			} else if wanted && n.Else != nil {
				add(n.Else)
			}
		case *ast.CaseClause:
			if slices.ContainsFunc(n.List, func(e ast.Expr) bool { wanted, yes := asksForWindows(e); return wanted && yes || isWindows(e) }) {
				between(n.Colon, n.End()) // the block begins after the colon
			}
		case *ast.FuncDecl:
			if n.Body != nil && strings.Contains(strings.ToLower(n.Name.Name), "windows") {
				add(n.Body)
			}
		}
		return true
	})
	return spans, nil
}

func isWindows(e ast.Expr) bool {
	literal, ok := e.(*ast.BasicLit)
	return ok && literal.Value == `"windows"`
}

// asksForWindows reports whether a condition compares with "windows" or calls a function of that name, and whether Windows makes
// it true.
func asksForWindows(e ast.Expr) (asks, positive bool) {
	switch n := e.(type) {
	case *ast.ParenExpr:
		return asksForWindows(n.X)
	case *ast.UnaryExpr:
		asks, positive = asksForWindows(n.X)
		return asks, positive != (n.Op == token.NOT)
	case *ast.BinaryExpr:
		if isWindows(n.X) || isWindows(n.Y) {
			return true, n.Op == token.EQL
		}
		if n.Op != token.LAND {
			return false, false
		}
		if asks, positive = asksForWindows(n.X); asks {
			return asks, positive
		}
		return asksForWindows(n.Y)
	case *ast.CallExpr:
		if selector, ok := n.Fun.(*ast.SelectorExpr); ok && strings.EqualFold(selector.Sel.Name, "windows") {
			return true, true
		}
	case *ast.SelectorExpr:
		return strings.EqualFold(n.Sel.Name, "windows"), true
	}
	return false, false
}

// share counts the Windows-specific statements of a package, and those that ran.
type share struct{ tagged, taggedRan, branches, branchesRan int }

func (s *share) add(o share) {
	s.tagged += o.tagged
	s.taggedRan += o.taggedRan
	s.branches += o.branches
	s.branchesRan += o.branchesRan
}

// measure groups the Windows-specific blocks by package, and lists those that never ran as file:line.
func measure(root string, blocks map[string]*block) (map[string]*share, []string, error) {
	spans := map[string][]span{}
	out := map[string]*share{}
	var missed []string
	for _, b := range blocks {
		file := strings.TrimPrefix(b.file, module)
		path := filepath.Join(root, file)
		if _, known := spans[file]; !known {
			if _, err := os.Stat(path); err != nil {
				return nil, nil, fmt.Errorf("the profile names %s: %w", file, err)
			}
			found, err := windowsSpans(path)
			if err != nil {
				return nil, nil, err
			}
			spans[file] = found
		}
		if !slices.ContainsFunc(spans[file], func(s span) bool { return s.holds(b) }) {
			continue
		}
		one := share{branches: b.statements}
		if b.executed > 0 {
			one.branchesRan = b.statements
		} else {
			missed = append(missed, fmt.Sprintf("%s:%d", file, b.from.line))
		}
		if strings.HasSuffix(file, "_windows.go") {
			one = share{tagged: one.branches, taggedRan: one.branchesRan}
		}
		pkg := filepath.ToSlash(filepath.Dir(file))
		if out[pkg] == nil {
			out[pkg] = &share{}
		}
		out[pkg].add(one)
	}
	slices.Sort(missed)
	return out, missed, nil
}
