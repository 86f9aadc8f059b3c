package repo_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

const (
	mostMethods = 25
	mostFields  = 20
	mostLines   = 4000 // of a package, without tests
)

// bigTypes may have more methods or fields.
var bigTypes = map[string]string{
	"pkg/pod.Container": "a plain record of what the engine has of one container",

	"pkg/pod/podtest.API":    "one simulated API server: what users do and what the worker calls changes one state under one lock",
	"pkg/pod/podtest.Engine": "one simulated engine: steps, probes, commands and faults of the same containers under one lock",

	"test/windows/simulators/hcs.containerConfig": "a document of Windows, field by field",
	"test/windows/simulators/hns.v1Endpoint":      "a document of Windows, field by field",
	"test/windows/simulators/hns.HNS":             "one service of Windows: a method for each request and each rule, over one state under one lock",
	"test/windows/simulators/iphelper.Host":       "one network stack of Windows: a method for each call, over one state under one lock",
	"test/windows/simulators/engine.Engine":       "a server whose methods are the routes of the Engine API that it changes on their way",

	"test/windows/rig.Prefix":         "one Wine prefix: what a test does with a Windows Server, over one directory",
	"test/windows/suites/join.member": "the third node: the steps of the suite's tests, as short verbs that end the test when they fail",
	"test/e2e.space":                  "one test's namespace: what tests do in it, as short verbs over two fields",
	"test/lab.Cluster":                "each step of up, down and upgrade is a method, over the same hosts and directories",
	"test/lab.Host":                   "one network namespace: what the cluster and tests do on a host, as short verbs",
}

// bigPackages may have more lines.
var bigPackages = map[string]string{
	"test/lab": "a cluster's parts share hosts, directories and the lock; no program links it",
}

// size is the size of a type or package in one system's build.
type size struct{ methods, fields, lines int }

// sizes measures types and packages as built for system: all of pkg, cmd and hack without unit tests, with their doubles,
// and of test the types of tests too.
func sizes(all []*source, system string) map[string]*size {
	found := map[string]*size{}
	at := func(name string) *size {
		if found[name] == nil {
			found[name] = &size{}
		}
		return found[name]
	}
	for _, s := range all {
		if !slices.Contains(s.systems, system) || s.test && !under(s.dir, "test") {
			continue
		}
		in := s.dir
		if strings.HasSuffix(s.syntax.Name.Name, "_test") {
			in += "_test"
		}
		if !s.test {
			at(s.dir).lines += s.lines
		}
		for _, declaration := range s.syntax.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				if name := receiver(d); name != "" {
					at(in+"."+name).methods++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if t, ok := spec.(*ast.TypeSpec); ok {
						at(in + "." + t.Name.Name).fields += fields(t.Type)
					}
				}
			}
		}
	}
	return found
}

// receiver returns the name of a method's type; "": a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	of := d.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

// fields returns the number of a struct's fields; 0 for other types.
func fields(of ast.Expr) (n int) {
	structure, ok := of.(*ast.StructType)
	if !ok {
		return 0
	}
	for _, field := range structure.Fields.List {
		n += max(1, len(field.Names))
	}
	return n
}

// TestSizes limits the size of types and packages.
func TestSizes(t *testing.T) {
	types, packages := exceptions(bigTypes), exceptions(bigPackages)
	all := load(t)
	most := map[string]*size{}
	for _, system := range systems {
		for name, here := range sizes(all, system) {
			if most[name] == nil {
				most[name] = &size{}
			}
			m := most[name]
			m.methods, m.fields, m.lines = max(m.methods, here.methods), max(m.fields, here.fields), max(m.lines, here.lines)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(most)) {
		m := most[name]
		if m.lines > mostLines && !packages.has(name) {
			t.Errorf("%s has %d lines without tests, want at most %d", name, m.lines, mostLines)
		}
		if (m.methods > mostMethods || m.fields > mostFields) && !types.has(name) {
			t.Errorf("%s has %d methods and %d fields, want at most %d and %d", name, m.methods, m.fields, mostMethods, mostFields)
		}
	}
	types.done(t)
	packages.done(t)
}

// TestGoroutinesAreAwaited finds go statements. errgroup and sync.WaitGroup.Go have an owner that waits; a plain go
// statement needs a comment that says who waits, or why no one has to.
func TestGoroutinesAreAwaited(t *testing.T) {
	for _, s := range load(t) {
		if s.test || !under(s.dir, "pkg", "cmd") || double(s.dir) {
			continue
		}
		reasons := map[int]bool{}
		for _, group := range s.syntax.Comments {
			for _, comment := range group.List {
				reasons[s.positions.Position(comment.Pos()).Line] = true
			}
		}
		ast.Inspect(s.syntax, func(node ast.Node) bool {
			if statement, ok := node.(*ast.GoStmt); ok {
				at := s.positions.Position(statement.Pos())
				if !reasons[at.Line] && !reasons[at.Line-1] {
					t.Errorf("%s: start it with errgroup or sync.WaitGroup.Go and wait for it, or give the reason in a comment", at)
				}
			}
			return true
		})
	}
}

// TestWakeUps finds channels that only wake goroutines, because package wake exists for that: those with room for one
// signal, and those that are closed and replaced.
func TestWakeUps(t *testing.T) {
	for _, s := range load(t) {
		if s.test || !under(s.dir, "pkg", "cmd") || double(s.dir) || s.dir == "pkg/wake" {
			continue
		}
		for _, at := range replaced(s.syntax) {
			t.Errorf("%s: use wake.Broadcast instead of a channel that is closed and replaced", s.positions.Position(at))
		}
		ast.Inspect(s.syntax, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			channel, ok := call.Args[0].(*ast.ChanType)
			if !ok {
				return true
			}
			element, ok := channel.Value.(*ast.StructType)
			if capacity, literal := call.Args[1].(*ast.BasicLit); ok && literal && capacity.Value == "1" && len(element.Fields.List) == 0 {
				t.Errorf("%s: use wake.New", s.positions.Position(call.Pos()))
			}
			return true
		})
	}
}

// replaced returns where functions close a channel in a field and assign the same field.
func replaced(file *ast.File) (found []token.Pos) {
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		closed, assigned := map[string]token.Pos{}, map[string]bool{}
		ast.Inspect(function.Body, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.CallExpr:
				if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "close" && len(n.Args) == 1 {
					if field, ok := n.Args[0].(*ast.SelectorExpr); ok {
						closed[types.ExprString(field)] = n.Pos()
					}
				}
			case *ast.AssignStmt:
				for _, to := range n.Lhs {
					assigned[types.ExprString(to)] = true
				}
			}
			return true
		})
		for field, at := range closed {
			if assigned[field] {
				found = append(found, at)
			}
		}
	}
	return found
}

func TestReplaced(t *testing.T) {
	for body, want := range map[string]int{
		`close(a.news); a.news = make(chan struct{})`:      1,
		`if a.told != nil { close(a.told); a.told = nil }`: 1,
		`close(a.done)`: 0,
		`close(a.done); b.done = make(chan struct{})`:       0,
		`done := make(chan struct{}); close(done)`:          0,
		`a.b.news = make(chan struct{}); close(a.b.news)`:   1,
		`go func() { close(a.n); a.n = make(chan bool) }()`: 1,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a; func f() { "+body+" }", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(replaced(file)); got != want {
			t.Errorf("%s: found %d, want %d", body, got, want)
		}
	}
}
