package programs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	issueReference = regexp.MustCompile(`\b[\w.-]+/([\w.-]+#\d+)`)          // microsoft/hcsshim#850
	mobyReference  = regexp.MustCompile(`moby ((?:[a-z]+/)+[a-z_]+\.go)\b`) // moby daemon/network.go
)

// TestQuirksIndex: docs/design/windows-quirks.md indexes the simulators' rules. It contains each source that they cite, and each HRESULT that the
// simulated HNS returns.
func TestQuirksIndex(t *testing.T) {
	index, err := os.ReadFile("../../../../docs/design/windows-quirks.md")
	if err != nil {
		t.Fatal(err)
	}
	cited, refusals := 0, 0
	has := func(where, what string) {
		if !strings.Contains(string(index), what) {
			t.Errorf("docs/design/windows-quirks.md does not have %s, of %s", what, where)
		}
	}
	for _, path := range simulators(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, pattern := range []*regexp.Regexp{issueReference, mobyReference} {
			for _, match := range pattern.FindAllStringSubmatch(string(text), -1) {
				cited++
				has(path, match[1])
			}
		}
		for _, code := range refusedWith(t, path) {
			refusals++
			has(path, code)
		}
	}
	if cited < 40 || refusals < 50 {
		t.Errorf("found %d citations and %d refusals: the patterns no longer fit the code", cited, refusals)
	}
}

func simulators(t *testing.T) (paths []string) {
	for _, dir := range []string{"engine", "hns", "iphelper", "netsh", "pdh"} {
		all, err := filepath.Glob("../../simulators/" + dir + "/*.go")
		if err != nil || len(all) == 0 {
			t.Fatalf("no files in %s: %v", dir, err)
		}
		for _, path := range all {
			if !strings.HasSuffix(path, "_test.go") {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// refusedWith returns the HRESULTs, as text, of a file's calls of fail.
func refusedWith(t *testing.T, path string) (codes []string) {
	constants, err := os.ReadFile("../../simulators/hns/result.go")
	if err != nil {
		t.Fatal(err)
	}
	hresult := func(name string) string {
		match := regexp.MustCompile(`\b` + name + `\s+Result = (0x[0-9a-f]{8})`).FindSubmatch(constants)
		if match == nil {
			t.Fatalf("%s: hns/result.go has no %s", path, name)
		}
		return string(match[1])
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		name, isFail := call.Fun.(*ast.Ident)
		if code, named := call.Args[0].(*ast.Ident); isFail && name.Name == "fail" && named {
			codes = append(codes, hresult(code.Name))
		}
		return true
	})
	return codes
}
