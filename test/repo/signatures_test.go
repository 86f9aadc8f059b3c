package repo_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// architecturePage lists the contracts between the rooms.
const architecturePage = "docs/design/architecture.md"

// shown are the contracts that the page must list.
var shown = []string{
	"pkg/pod/plan.Plan", "pkg/pod/plan.Status", "pkg/pod/plan.Seen", "pkg/proxy.Build", "pkg/proxy.Backend", "pkg/network.Plan", "pkg/network.Maker", "pkg/routes.Plan", "pkg/volume.Kind",
}

// goBlock matches a block of Go code in a page: its first line names the package's directory.
var goBlock = regexp.MustCompile("(?ms)^```go\n// (pkg/\\S+)\n(.*?)^```$")

// contract returns a function's signature or a type, without comments and bodies, as go/printer formats it.
func contract(declaration ast.Node) string {
	var out bytes.Buffer
	if err := printer.Fprint(&out, token.NewFileSet(), declaration); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(out.String()), " ")
}

// contracts returns the contracts of a file by name.
func contracts(file *ast.File) map[string]string {
	found := map[string]string{}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			d.Body, d.Doc = nil, nil
			name := d.Name.Name
			if of := receiver(d); of != "" {
				name = of + "." + name
			}
			found[name] = contract(&ast.FuncDecl{Recv: d.Recv, Name: d.Name, Type: d.Type})
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok {
					ast.Inspect(t, func(node ast.Node) bool {
						if field, ok := node.(*ast.Field); ok {
							field.Doc, field.Comment = nil, nil
						}
						return true
					})
					found[t.Name.Name] = contract(&ast.TypeSpec{Name: t.Name, TypeParams: t.TypeParams, Type: t.Type})
				}
			}
		}
	}
	return found
}

// TestArchitectureShowsTheContracts: the signatures in the page equal those in the code.
func TestArchitectureShowsTheContracts(t *testing.T) {
	inCode := map[string]string{}
	for _, s := range load(t) {
		if s.test || !under(s.dir, "pkg") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), "", read(t, s.path), parser.SkipObjectResolution) // parse again: the files of load are shared
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range contracts(file) {
			inCode[s.dir+"."+name] = text
		}
	}
	var onPage []string
	for _, block := range goBlock.FindAllStringSubmatch(read(t, architecturePage), -1) {
		file, err := parser.ParseFile(token.NewFileSet(), block[1], "package p\n"+block[2], parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: a block of %s is no Go: %v", architecturePage, block[1], err)
			continue
		}
		for name, text := range contracts(file) {
			name = block[1] + "." + name
			onPage = append(onPage, name)
			switch code := inCode[name]; code {
			case text:
			case "":
				t.Errorf("%s shows %s, which is not in the code", architecturePage, name)
			default:
				t.Errorf("%s shows\n  %s\nbut %s is\n  %s", architecturePage, text, name, code)
			}
		}
	}
	for _, name := range shown {
		if !slices.Contains(onPage, name) {
			t.Errorf("%s does not show %s", architecturePage, name)
		}
	}
}
