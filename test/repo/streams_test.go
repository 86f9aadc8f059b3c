package repo_test

import (
	"go/ast"
	"go/token"
	"go/types"
	"testing"
)

// oneStream are files in which both output streams of a program go to one buffer, with reasons.
var oneStream = map[string]string{
	"test/windows/suites/differential/differential_test.go": "the log of a program that stays, printed when the test fails",
}

// TestStreamsApart: tests read a program's two output streams separately. Libraries' output on standard error depends
// on the machine.
func TestStreamsApart(t *testing.T) {
	excuse := exceptions(oneStream)
	for _, s := range load(t) {
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if mixes(n) && !excuse.has(s.path) {
				t.Errorf("%s reads standard output and standard error as one: use test/output, and parse Stdout alone", s.positions.Position(n.Pos()))
			}
			return true
		})
	}
	excuse.done(t)
}

// mixes reports calls of CombinedOutput, and cmd.Stdout, cmd.Stderr = &out, &out.
func mixes(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		return n.Sel.Name == "CombinedOutput"
	case *ast.AssignStmt:
		buffers := map[string]bool{}
		for i, left := range n.Lhs {
			to, ok := left.(*ast.SelectorExpr)
			if !ok || to.Sel.Name != "Stdout" && to.Sel.Name != "Stderr" || len(n.Rhs) != len(n.Lhs) {
				continue
			}
			if address, ok := n.Rhs[i].(*ast.UnaryExpr); ok && address.Op == token.AND {
				name := types.ExprString(address.X)
				if buffers[name] {
					return true
				}
				buffers[name] = true
			}
		}
	}
	return false
}

func TestMixes(t *testing.T) {
	for text, want := range map[string]bool{
		"package p\nfunc f() { out, _ := cmd.CombinedOutput() }":                 true,
		"package p\nfunc f() { cmd.Stdout, cmd.Stderr = &out, &out }":            true,
		"package p\nfunc f() { cmd.Stdout, cmd.Stderr = &out, &errors }":         false,
		"package p\nfunc f() { cmd.Stdout, cmd.Stderr = log, log }":              false,
		"package p\nfunc f() { c.Stdin, c.Stdout, c.Stderr = &both, &both, &e }": false,
	} {
		s, err := parse("p.go", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got := false
		ast.Inspect(s.syntax, func(n ast.Node) bool { got = got || mixes(n); return true })
		if got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}
