package repo_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestLinks: every link in the pages leads to an existing file and heading, and every page below docs is reachable from
// the index and in the site's navigation.
func TestLinks(t *testing.T) {
	all := pages(t)
	headings := map[string]map[string]bool{}
	for name, text := range all {
		headings[name] = anchors(text)
	}
	leads := map[string][]string{}
	for name, text := range all {
		for _, to := range links(text) {
			if strings.Contains(to, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(to, "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			_, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(target)))
			switch {
			case err != nil:
				t.Errorf("%s: there is no %s", name, to)
			case strings.HasPrefix(name, "docs/") && !strings.HasPrefix(target, "docs/"):
				t.Errorf("%s: %s is not part of the documentation's site: write it in backquotes without a link", name, to)
			case anchor != "" && headings[target] != nil && !headings[target][anchor]:
				t.Errorf("%s: %s: no such heading", name, to)
			}
			leads[name] = append(leads[name], target)
		}
	}
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, next := range leads[name] {
			visit(next)
		}
	}
	visit("docs/README.md")
	navigation := read(t, "hack/docs/mkdocs.yml")
	for name := range all {
		inside, ok := strings.CutPrefix(name, "docs/")
		if !ok {
			continue
		}
		if !seen[name] {
			t.Errorf("%s cannot be reached from docs/README.md", name)
		}
		if !strings.Contains(navigation, ": "+inside+"\n") && !regexp.MustCompile(`^design/adr/\d`).MatchString(inside) {
			t.Errorf("%s is not in the navigation of hack/docs/mkdocs.yml", name)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// links returns the targets of a page's links, except in code.
func links(text string) (all []string) {
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced || strings.HasPrefix(line, "    ") {
			continue
		}
		for _, match := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
			all = append(all, match[1])
		}
	}
	return all
}

// anchors returns the anchors of a page's headings, as GitHub and the site generate them for plain words.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if heading := strings.TrimLeft(line, "#"); !fenced && heading != line {
			name := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			all[strings.ReplaceAll(name, " ", "-")] = true
		}
	}
	return all
}

// TestDecisions: the decision records have one format, and the index has a row for each number, including unused ones.
func TestDecisions(t *testing.T) {
	index := read(t, "docs/design/adr/README.md")
	files, err := filepath.Glob("../../docs/design/adr/[0-9]*.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[int]string{}
	last := 0
	for _, file := range files {
		base := filepath.Base(file)
		number, err := strconv.Atoi(base[:4])
		if err != nil {
			t.Errorf("%s: want a name like 0001-what-it-is.md", base)
			continue
		}
		if have[number] != "" {
			t.Errorf("%s and %s have the same number", have[number], base)
		}
		have[number] = base
		last = max(last, number)
		text := read(t, "docs/design/adr/"+base)
		if !strings.HasPrefix(text, fmt.Sprintf("# %d. ", number)) {
			t.Errorf("%s: want a title that begins with %q", base, fmt.Sprintf("# %d. ", number))
		}
		var got []string
		for _, match := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(text, -1) {
			got = append(got, match[1])
		}
		if want := "Status Context Decision Consequences"; strings.Join(got, " ") != want {
			t.Errorf("%s: has the sections %v, want %s", base, got, want)
		}
	}
	if len(have) < 20 {
		t.Errorf("found only %d decision records", len(have))
	}
	for number := 1; number <= last; number++ {
		if base := have[number]; base != "" && !strings.Contains(index, "]("+base+")") {
			t.Errorf("docs/design/adr/README.md has no link to %s", base)
		}
		if have[number] == "" && !regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \| `, number)).MatchString(index) {
			t.Errorf("no record has number %d: add a row that says so to docs/design/adr/README.md", number)
		}
	}
}

// unwritten are reasons in docs/reference/events.md that our code has no string for.
var unwritten = map[string]string{
	"Ready": fromAPI, "MemoryPressure": fromAPI, "DiskPressure": fromAPI, "PIDPressure": fromAPI, "NetworkUnavailable": fromAPI,
	"ResizeDeferred": composed, "ResizeInfeasible": composed,
}

const (
	fromAPI  = "a constant of k8s.io/api"
	composed = "Resize and a constant of k8s.io/api"
)

// TestEvents: every reason in docs/reference/events.md occurs in the code, and the page lists every reason in a call
// that writes an Event, given as a literal or as a constant of our code.
func TestEvents(t *testing.T) {
	listed := map[string]bool{}
	for _, match := range regexp.MustCompile("`([A-Z][A-Za-z]{3,})`").FindAllStringSubmatch(read(t, "docs/reference/events.md"), -1) {
		listed[match[1]] = true
	}
	written := map[string]bool{}
	reason := regexp.MustCompile(`^[A-Z][a-z]+[A-Za-z]+$`)
	all := load(t)
	constants := constantsOf(all)
	calls, named := 0, 0
	for _, s := range all {
		if s.test || !under(s.dir, "pkg", "cmd") || double(s.dir) {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, _ := strconv.Unquote(literal.Value)
				written[text] = true
			}
			call, ok := n.(*ast.CallExpr)
			if !ok || !writesEvent(call.Fun) {
				return true
			}
			for _, arg := range call.Args {
				text := constants.text(s, arg)
				if !reason.MatchString(text) {
					continue
				}
				calls++
				if _, literal := arg.(*ast.BasicLit); !literal {
					named++
				}
				if !listed[text] {
					t.Errorf("%s: docs/reference/events.md does not have the reason %s", s.positions.Position(call.Pos()), text)
				}
			}
			return true
		})
	}
	excuse := exceptions(unwritten)
	for name := range listed {
		if !written[name] && !excuse.has(name) {
			t.Errorf("docs/reference/events.md has %s, which the code never sends: remove it", name)
		}
	}
	excuse.done(t)
	if len(listed) < 80 || calls < 30 || named < 10 {
		t.Errorf("found only %d reasons, %d calls, %d of them with constants: fix how this test finds them", len(listed), calls, named)
	}
}

// textConstants are the string constants of our packages, by directory and name.
type textConstants map[string]map[string]string

func constantsOf(all []*source) textConstants {
	found := textConstants{}
	for _, s := range all {
		for _, declaration := range s.syntax.Decls {
			d, ok := declaration.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST || s.test {
				continue
			}
			for _, spec := range d.Specs {
				values := spec.(*ast.ValueSpec)
				for i := 0; i < len(values.Values) && i < len(values.Names); i++ {
					if literal, ok := values.Values[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
						if found[s.dir] == nil {
							found[s.dir] = map[string]string{}
						}
						found[s.dir][values.Names[i].Name], _ = strconv.Unquote(literal.Value)
					}
				}
			}
		}
	}
	return found
}

// text returns the text of an expression in s: a literal, a constant of our packages, or a conversion of one to string;
// "": something else.
func (c textConstants) text(s *source, expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, _ := strconv.Unquote(e.Value)
			return text
		}
	case *ast.Ident:
		return c[s.dir][e.Name]
	case *ast.SelectorExpr:
		if of, ok := e.X.(*ast.Ident); ok {
			for _, imported := range s.imports {
				if dir, ours := strings.CutPrefix(imported, module); ours && path.Base(dir) == of.Name {
					return c[dir][e.Sel.Name]
				}
			}
		}
	case *ast.CallExpr:
		if to, ok := e.Fun.(*ast.Ident); ok && to.Name == "string" && len(e.Args) == 1 {
			return c.text(s, e.Args[0])
		}
	}
	return ""
}

// writesEvent reports whether a function is one that writes Events.
func writesEvent(function ast.Expr) bool {
	name := ""
	switch f := function.(type) {
	case *ast.SelectorExpr:
		name = f.Sel.Name
	case *ast.Ident:
		name = f.Name
	}
	switch strings.ToLower(name) {
	case "event", "eventf", "annotatedeventf", "podevent", "nodeevent", "containerevent", "warn":
		return true
	}
	return false
}

// foreign are other projects' documents that comments name.
var foreign = map[string]string{
	"api/docs/CHANGELOG.md":       "moby's",
	"docs/api/version-history.md": "moby's",
	"backends.md":                 "flannel's",
}

var (
	namedPage   = regexp.MustCompile("(?:^|[\\s(\"'`])((?:[\\w-]+/)*[\\w-]+\\.md)\\b")
	namedRecord = regexp.MustCompile(`\bADR (\d+)\b`)
)

// TestNamedPages: the pages and decision records that comments of Go files name exist, and so do the pages that programs name.
func TestNamedPages(t *testing.T) {
	bases := map[string]bool{}
	for name := range pages(t) {
		bases[path.Base(name)] = true
	}
	excuse := exceptions(foreign)
	found := 0
	check := func(at token.Position, text string) {
		for _, match := range namedPage.FindAllStringSubmatch(text, -1) {
			found++
			_, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(match[1])))
			if err != nil && !bases[match[1]] && !excuse.has(match[1]) {
				t.Errorf("%s: there is no %s", at, match[1])
			}
		}
		for _, match := range namedRecord.FindAllStringSubmatch(text, -1) {
			found++
			number, _ := strconv.Atoi(match[1])
			if files, err := filepath.Glob(fmt.Sprintf("../../docs/design/adr/%04d-*.md", number)); err != nil || len(files) != 1 {
				t.Errorf("%s: there is no %s", at, match[0])
			}
		}
	}
	for _, s := range load(t) {
		for _, group := range s.syntax.Comments {
			check(s.positions.Position(group.Pos()), group.Text())
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING && !s.test && strings.Contains(literal.Value, "docs/") {
				text, _ := strconv.Unquote(literal.Value)
				check(s.positions.Position(literal.Pos()), text)
			}
			return true
		})
	}
	excuse.done(t)
	if found < 30 {
		t.Errorf("found only %d names: fix how this test finds them", found)
	}
}
