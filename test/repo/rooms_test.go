package repo_test

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// rooms are the packages of the pod flow, each with the packages of ours that it may import.
var rooms = map[string][]string{
	"pkg/podspec":    nil,
	"pkg/pod":        {"pkg/podspec"},
	"pkg/pod/plan":   {"pkg/pod", "pkg/podspec"},
	"pkg/pod/start":  {"pkg/pod", "pkg/podspec"},
	"pkg/pod/source": {"pkg/clientset", "pkg/filewatch", "pkg/pod", "pkg/podspec", "pkg/wake"},
	"pkg/pod/worker": {"pkg/pod", "pkg/pod/plan", "pkg/podspec", "pkg/wake"},
}

// pureRooms are the rooms that only compute, with the other packages that they may import: none that reads, writes,
// waits or logs. An entry that ends in a slash includes all packages below it.
var pureRooms = map[string][]string{
	"pkg/podspec":  append(slices.Clone(computing), "encoding/json", "hash/fnv", "net", "path", "regexp", "github.com/distribution/reference"),
	"pkg/pod":      append(slices.Clone(computing), "context", "runtime/debug"),
	"pkg/pod/plan": append(slices.Clone(computing), "text/tabwriter"),
}

var computing = []string{
	"cmp", "errors", "fmt", "iter", "maps", "math", "net/netip", "slices", "strconv", "strings", "time",
	"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/component-helpers/resource",
}

// waiting is a package of apimachinery of which pure rooms may only use the calculations.
const waiting = "k8s.io/apimachinery/pkg/util/wait"

// clocks are functions of package time that a pure room must not call: the current time is a parameter.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func TestRooms(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range load(t) {
		allowed, ok := rooms[s.dir]
		if !ok || s.test {
			continue
		}
		seen[s.dir] = true
		for _, imported := range s.imports {
			if to, ours := strings.CutPrefix(imported, module); ours && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: this room may import %q", s.path, to, allowed)
			}
		}
	}
	for dir := range rooms {
		if !seen[dir] {
			t.Errorf("%s does not exist: remove it from the table", dir)
		}
	}
}

func TestPureRooms(t *testing.T) {
	for _, s := range load(t) {
		allowed, ok := pureRooms[s.dir]
		if !ok || s.test {
			continue
		}
		for _, imported := range s.imports {
			if !strings.HasPrefix(imported, module) && !within(imported, allowed) {
				t.Errorf("%s imports %s: package %s may only compute", s.path, imported, path.Base(s.dir))
			}
		}
		for _, name := range clocks {
			for _, position := range uses(s, "time", name) {
				t.Errorf("%s: time.%s: package %s must get the time from its caller", position, name, path.Base(s.dir))
			}
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: package %s must not start goroutines", s.positions.Position(n.Pos()), path.Base(s.dir))
			case *ast.SelectorExpr: // the wait package also has functions that wait
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "wait" && n.Sel.Name != "Backoff" && slices.Contains(s.imports, waiting) {
					t.Errorf("%s: wait.%s: package %s may use only wait.Backoff", s.positions.Position(n.Pos()), n.Sel.Name, path.Base(s.dir))
				}
			}
			return true
		})
	}
}

// within reports whether a package is in list or, for entries that end in a slash, below one.
func within(imported string, list []string) bool {
	return slices.ContainsFunc(list, func(one string) bool {
		return imported == one || strings.HasSuffix(one, "/") && strings.HasPrefix(imported, one)
	})
}

func TestWithin(t *testing.T) {
	for imported, want := range map[string]bool{
		"fmt": true, "k8s.io/api/core/v1": true, "k8s.io/apimachinery/pkg/types": true,
		"os": false, "net/http": false, "sync": false, "sync/atomic": false, "k8s.io/client-go/tools/record": false, "k8s.io/klog/v2": false, "fmtx": false,
	} {
		if got := within(imported, computing); got != want {
			t.Errorf("%s: got %t, want %t", imported, got, want)
		}
	}
}
