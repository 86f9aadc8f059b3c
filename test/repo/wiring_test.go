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

// assemblies are the packages that assemble programs.
var assemblies = []string{"pkg/kubelet", "pkg/kubeproxy", "cmd/kubelet/app", "cmd/kube-proxy/app"}

// halfBuilt are the functions of assemblies that may use unfinished values, each with the reason.
var halfBuilt = map[string]string{}

// optional are parts that may be nil: of the type that New makes, each with the reason.
var optional = map[string]string{
	"pkg/kubelet health":           "the feature gate CSIVolumeHealth is off by default",
	"pkg/kubelet server":           "enableServer: false opens no port",
	"pkg/kubelet serving":          "there is none without --rotate-server-certificates",
	"pkg/kubelet workload.cgroups": "Windows has no cgroups, and Linux may do without",
	"pkg/kubeproxy cfg.Effective":  "a value to show, not a part",
}

// TestWiring: parts are created from finished parts. In an assembly, while a variable's fields are being set, no
// function literal may refer to it and none of its methods may be used. Methods of New's result set none of its fields,
// and compare no part with nil that always exists. A method that makes a program sets no field of its receiver.
func TestWiring(t *testing.T) {
	files := map[string][]*ast.File{}
	for _, s := range load(t) {
		if slices.Contains(assemblies, s.dir) && !s.test {
			files[s.dir] = append(files[s.dir], s.syntax)
		}
	}
	used, parts := map[string]bool{}, exceptions(optional)
	for _, dir := range assemblies {
		if len(files[dir]) == 0 {
			t.Errorf("%s has no files", dir)
		}
		for _, why := range wiring(files[dir]) {
			name, _, _ := strings.Cut(why, ":")
			if used[dir+" "+name] = true; halfBuilt[dir+" "+name] == "" {
				t.Errorf("%s: %s", dir, why)
			}
		}
		for _, part := range nilTests(files[dir]) {
			if !parts.has(dir + " " + part) {
				t.Errorf("%s: %s is compared with nil: New must always make it, or it needs a reason in the table of optional parts", dir, part)
			}
		}
	}
	parts.done(t)
	for _, name := range slices.Sorted(maps.Keys(halfBuilt)) {
		if !used[name] {
			t.Errorf("%s no longer needs an exception: remove it from the table", name)
		}
	}
}

// wiring returns the violations in a package's functions; each line begins with the function's name.
func wiring(files []*ast.File) (wrong []string) {
	methods, made := map[string]map[string]bool{}, ""
	var all []*ast.FuncDecl
	for _, file := range files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			all = append(all, f)
			if f.Recv != nil {
				of := typeName(f.Recv.List[0].Type)
				if methods[of] == nil {
					methods[of] = map[string]bool{}
				}
				methods[of][f.Name.Name] = true
			} else if f.Name.Name == "New" && f.Type.Results != nil {
				made = typeName(f.Type.Results.List[0].Type)
			}
		}
	}
	for _, f := range all {
		if f.Recv == nil {
			for variable, of := range building(f.Body) {
				if escapes(f.Body, variable, methods[of]) {
					wrong = append(wrong, f.Name.Name+": a function refers to "+variable+", whose fields are still being set")
				}
			}
			continue
		}
		names := f.Recv.List[0].Names
		if len(names) != 1 || len(fieldsSet(f.Body, names[0].Name)) == 0 {
			continue
		}
		if of := typeName(f.Recv.List[0].Type); made != "" && of == made || makesProgram(f.Body) {
			wrong = append(wrong, f.Name.Name+": it sets a field of a "+of+" that is made already")
		}
	}
	slices.Sort(wrong)
	return wrong
}

// typeName returns the name of a type of this package for an expression of it or a pointer to it; "": another type.
func typeName(expr ast.Expr) string {
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	if name, ok := expr.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

// building returns a function's variables that it creates with a composite literal of this package's types and whose
// fields it sets later, with their types.
func building(body *ast.BlockStmt) map[string]string {
	out := map[string]string{}
	define := func(name, value ast.Expr) {
		if unary, ok := value.(*ast.UnaryExpr); ok {
			value = unary.X
		}
		variable, ok := name.(*ast.Ident)
		literal, made := value.(*ast.CompositeLit)
		if !ok || !made {
			return
		}
		if of := typeName(literal.Type); of != "" && len(fieldsSet(body, variable.Name)) > 0 {
			out[variable.Name] = of
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok && len(assign.Lhs) == len(assign.Rhs) {
			for i := range assign.Lhs {
				define(assign.Lhs[i], assign.Rhs[i])
			}
		}
		return true
	})
	return out
}

// fieldsSet returns the fields of a variable that are assigned.
func fieldsSet(body *ast.BlockStmt, variable string) (fields []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok {
			for _, to := range assign.Lhs {
				if field, ok := to.(*ast.SelectorExpr); ok && root(field.X) == variable {
					fields = append(fields, field.Sel.Name)
				}
			}
		}
		return true
	})
	return fields
}

// root returns the variable in which a chain of fields begins; "": something else.
func root(expr ast.Expr) string {
	for {
		switch e := expr.(type) {
		case *ast.SelectorExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

// makesProgram reports whether New of an assembly is called.
func makesProgram(body *ast.BlockStmt) (makes bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			name := types.ExprString(call.Fun)
			makes = makes || name == "kubelet.New" || name == "kubeproxy.New"
		}
		return true
	})
	return makes
}

// nilTests returns the fields of New's result that its methods compare with nil, such as "workload.cgroups".
func nilTests(files []*ast.File) (parts []string) {
	made := ""
	var all []*ast.FuncDecl
	for _, file := range files {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil {
				all = append(all, f)
				if f.Recv == nil && f.Name.Name == "New" && f.Type.Results != nil {
					made = typeName(f.Type.Results.List[0].Type)
				}
			}
		}
	}
	for _, f := range all {
		if f.Recv == nil || made == "" || typeName(f.Recv.List[0].Type) != made || len(f.Recv.List[0].Names) != 1 {
			continue
		}
		receiver := f.Recv.List[0].Names[0].Name
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if test, ok := n.(*ast.BinaryExpr); ok && (test.Op == token.EQL || test.Op == token.NEQ) && isVariable(test.Y, "nil") {
				if part, ok := strings.CutPrefix(types.ExprString(test.X), receiver+"."); ok && root(test.X) == receiver && !slices.Contains(parts, part) {
					parts = append(parts, part)
				}
			}
			return true
		})
	}
	return parts
}

func isVariable(expr ast.Expr, name string) bool {
	variable, ok := expr.(*ast.Ident)
	return ok && variable.Name == name
}

// escapes reports whether a function literal mentions the variable, or one of its methods is used.
func escapes(body *ast.BlockStmt, variable string, methods map[string]bool) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			found = found || isVariable(n.X, variable) && methods[n.Sel.Name]
		case *ast.FuncLit:
			ast.Inspect(n.Body, func(n ast.Node) bool {
				if expr, ok := n.(ast.Expr); ok && isVariable(expr, variable) {
					found = true
				}
				return true
			})
		}
		return true
	})
	return found
}

func TestWiringFinds(t *testing.T) {
	for source, want := range map[string]string{
		`func New() *T { a := makeA(); return &T{a: a, b: makeB(a)} }`:                                               "",
		`func New() *T { t := &T{}; t.a = makeA(); t.b = makeB(t.a); return t }`:                                     "",
		`func New() *T { t := &T{}; t.a = makeA(func() { t.b.Kick() }); return t }`:                                  "New: a function refers to t, whose fields are still being set",
		`func New() *T { t := &T{}; t.a = makeA(t.kick); return t }; func (t *T) kick() {}`:                          "New: a function refers to t, whose fields are still being set",
		`func New() *T { t := T{}; t.a, t.b = 1, func() int { return t.a }; return &t }`:                             "New: a function refers to t, whose fields are still being set",
		`func New() *T { t := &T{}; t.a = t.makeA(); return t }; func (t *T) makeA() int { return 1 }`:               "New: a function refers to t, whose fields are still being set",
		`func New() *T { return &T{} }; func (t *T) SetA(a int) { t.a = a }`:                                         "SetA: it sets a field of a T that is made already",
		`func New() *T { return &T{} }; func (s *other) SetA(a int) { s.a = a }`:                                     "",
		`func (s *s) serve() { s.c.holders = 1; kubeproxy.New(s.c) }`:                                                "serve: it sets a field of a s that is made already",
		`func (s *s) serve() { c := s.c; c.holders = 1; kubeproxy.New(c) }`:                                          "",
		`func newB() B { b := B{}; b.x = 1; b.f = func() int { return b.x }; return b }; func New() *T { return 0 }`: "newB: a function refers to b, whose fields are still being set",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a; "+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(wiring([]*ast.File{file}), "; "); got != want {
			t.Errorf("%s: %q, want %q", source, got, want)
		}
	}
}

func TestNilTests(t *testing.T) {
	for source, want := range map[string]string{
		`func New() *T { return &T{} }; func (t *T) Run() { if t.a != nil { t.a.Run() } }`:        "a",
		`func New() *T { return &T{} }; func (t *T) Run() { if t.b.c == nil || t.b.c == nil {} }`: "b.c",
		`func New() *T { return &T{} }; func (t *T) Run() { if err != nil { return } }`:           "",
		`func New() *T { return &T{} }; func (u *U) Run() { if u.a != nil {} }`:                   "",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a; "+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(nilTests([]*ast.File{file}), " "); got != want {
			t.Errorf("%s: %q, want %q", source, got, want)
		}
	}
}
