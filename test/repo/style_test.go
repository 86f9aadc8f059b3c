package repo_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/page"
)

const beforeStyle = "written before docs/style.md"

// uncleaned are directories whose Go files, or those of directories below, still have banned turns. Remove a row when its text is clean.
var uncleaned = map[string]string{
	"cmd/kube-proxy/app": beforeStyle,
	"cmd/kubelet/app":    beforeStyle,
	"pkg/admit":          beforeStyle,
	"pkg/cgroup":         beforeStyle,
	"pkg/cni":            beforeStyle,
	"pkg/command":        beforeStyle,
	"pkg/credential":     beforeStyle,
	"pkg/cri":            beforeStyle,
	"pkg/daemon":         beforeStyle,
	"pkg/disk":           beforeStyle,
	"pkg/docker":         beforeStyle,
	"pkg/doctor":         beforeStyle,
	"pkg/guard":          beforeStyle,
	"pkg/hcs":            beforeStyle,
	"pkg/hns":            beforeStyle,
	"pkg/host":           beforeStyle,
	"pkg/hostport":       beforeStyle,
	"pkg/kubeclient":     beforeStyle,
	"pkg/kubelet":        beforeStyle,
	"pkg/kubeproxy":      beforeStyle,
	"pkg/netsh":          beforeStyle,
	"pkg/network":        beforeStyle,
	"pkg/node":           beforeStyle,
	"pkg/pod":            beforeStyle,
	"pkg/probe":          beforeStyle,
	"pkg/proxy":          beforeStyle,
	"pkg/report":         beforeStyle,
	"pkg/routes":         beforeStyle,
	"pkg/server":         beforeStyle,
	"pkg/stats":          beforeStyle,
	"pkg/volume":         beforeStyle,
	"pkg/vxlan":          beforeStyle,
	"test/bench":         beforeStyle,
	"test/conformance":   beforeStyle,
	"test/e2e":           beforeStyle,
	"test/lab":           beforeStyle,
	"test/repo":          beforeStyle,
	"test/windows":       beforeStyle,
}

// generated are pages that programs write: their text is in Go code, and clean when that is.
var generated = map[string]string{
	"docs/reference/kubelet-flags.md": "go test ./cmd/kubelet/app -run TestReference -update",
	"docs/reference/proxy-flags.md":   "go test ./cmd/kube-proxy/app -run TestReference -update",
	"docs/figures/conformance.md":     "go run ./test/conformance -update-docs",
}

// longest is the number of words that a page's sentences may have on average.
const longest = 22

// banned reads the table of docs/style.md.
func banned(t *testing.T) *regexp.Regexp {
	t.Helper()
	_, section, found := strings.Cut(read(t, "docs/style.md"), "\n## Banned turns\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var all []string
	for line := range strings.Lines(section) {
		row := strings.Split(line, "|")
		if len(row) != 4 {
			continue
		}
		for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			all = append(all, match[1])
		}
	}
	if !found || len(all) < 20 {
		t.Fatalf("docs/style.md has %d banned turns: this test does not read its table", len(all))
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(strings.Join(all, "|"), " ", `\s+`) + `)\b`)
}

// pages returns the text of every page by its path from the root of the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := page.Files(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, file := range files {
		name := filepath.ToSlash(strings.TrimPrefix(file, filepath.Join("..", "..")+string(filepath.Separator)))
		all[name] = read(t, name)
	}
	if len(all) < 40 {
		t.Fatalf("found only %d pages: this test does not see docs", len(all))
	}
	return all
}

var (
	inlineCode = regexp.MustCompile("``.+?``|`[^`]*`")
	listMark   = regexp.MustCompile(`^\s*(?:[-*]|\d+\.)\s+`)
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
)

// prose is a page's text without code; with tables it keeps their rows. Every line is a line of the page.
func prose(text string, tables bool) []string {
	var out []string
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
			line = ""
		case fenced, strings.HasPrefix(line, "    "), strings.HasPrefix(line, "<!--"):
			line = ""
		case !tables && (strings.HasPrefix(line, "|") || strings.HasPrefix(line, "#")):
			line = ""
		}
		out = append(out, linkTarget.ReplaceAllString(inlineCode.ReplaceAllString(line, "`x`"), "]"))
	}
	return out
}

// sentences counts the sentences and words of a page's paragraphs and lists.
func sentences(text string) (count, words int) {
	end := func(paragraph string) {
		if paragraph == "" {
			return
		}
		for _, one := range regexp.MustCompile(`[.!?:;][)"*]*\s+|\s-\s`).Split(paragraph+" ", -1) {
			if n := len(strings.Fields(one)); n > 0 {
				count, words = count+1, words+n
			}
		}
	}
	var paragraph []string
	for _, line := range append(prose(text, false), "") {
		item := listMark.MatchString(line)
		if item || strings.TrimSpace(line) == "" {
			end(strings.Join(paragraph, " "))
			paragraph = nil
		}
		if line = strings.TrimSpace(listMark.ReplaceAllString(line, "")); line != "" {
			paragraph = append(paragraph, line)
		}
	}
	return count, words
}

func TestPlainPages(t *testing.T) {
	turns := banned(t)
	made := exceptions(generated)
	for name, text := range pages(t) {
		if made.has(name) || name == "docs/style.md" {
			continue
		}
		for i, line := range prose(text, true) {
			for _, found := range turns.FindAllString(line, -1) {
				t.Errorf("%s:%d: %q: docs/style.md says what to write instead", name, i+1, found)
			}
		}
		if count, words := sentences(text); count > 0 && float64(words)/float64(count) > longest {
			t.Errorf("%s: sentences have %.1f words on average, at most %d are wanted", name, float64(words)/float64(count), longest)
		}
	}
	made.done(t)
	if lines := strings.Count(read(t, "README.md"), "\n"); lines >= 100 {
		t.Errorf("README.md has %d lines: a landing page has fewer than 100", lines)
	}
}

func TestPlainCode(t *testing.T) {
	turns := banned(t)
	excused := exceptions(uncleaned)
	for _, s := range load(t) {
		if s.path == "test/repo/style_test.go" {
			continue
		}
		say := func(node ast.Node, text string) {
			for _, found := range turns.FindAllString(text, -1) {
				if !excusedWithin(excused, s.dir) {
					t.Errorf("%s: %q: docs/style.md says what to write instead", s.positions.Position(node.Pos()), found)
				}
			}
		}
		for _, group := range s.syntax.Comments {
			say(group, strings.ReplaceAll(group.Text(), "\n", " "))
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, _ := strconv.Unquote(literal.Value)
				say(literal, text)
			}
			return true
		})
	}
	excused.done(t)
}

func TestPlainScripts(t *testing.T) {
	turns := banned(t)
	root := os.DirFS(filepath.Join("..", ".."))
	found := 0
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); name != "." && name != ".ci" && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		switch ext := path.Ext(name); {
		case ext == ".sh", ext == ".ps1", ext == ".psm1", ext == ".service", ext == ".conf", path.Base(name) == "Makefile", path.Base(name) == "Dockerfile", name == ".ci/run":
		default:
			return nil
		}
		found++
		text, err := fs.ReadFile(root, name)
		for i, line := range strings.Split(string(text), "\n") {
			if turn := turns.FindString(line); turn != "" {
				t.Errorf("%s:%d: %q: docs/style.md says what to write instead", name, i+1, turn)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 20 {
		t.Errorf("found only %d scripts: this test does not see them", found)
	}
}

// excusedWithin looks up a directory, then those above it.
func excusedWithin(e *excused, dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if e.has(dir) {
			return true
		}
	}
	return false
}

// TestLinks: every link within the pages leads to a file and a heading that exist, and every page of docs can be reached from its index and
// is in the site's navigation.
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
				t.Errorf("%s: %s is not part of the documentation's site: name it between backquotes", name, to)
			case anchor != "" && headings[target] != nil && !headings[target][anchor]:
				t.Errorf("%s: %s: there is no such heading", name, to)
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

// links are the targets of a page's links, code left out.
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

// anchors are the names of a page's headings, as GitHub and the site make them of plain words.
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

// TestDecisions: the decision records have one form, and the index has a row for each number, those that are not used among them.
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
			t.Errorf("%s and %s have one number", have[number], base)
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
			t.Errorf("docs/design/adr/README.md has no row for number %d, which no record has", number)
		}
	}
}

func TestSentences(t *testing.T) {
	const text = "# A heading of five words\n\nOne two three. Four five\nsix.\n\n- seven eight\n- nine `a b c`\n\n    code here is not counted\n\n| a | table |\n\n```text\nneither is this\n```\n"
	if count, words := sentences(text); count != 4 || words != 10 {
		t.Errorf("%d sentences of %d words", count, words)
	}
}

func TestBannedTurns(t *testing.T) {
	turns := banned(t)
	for text, want := range map[string]string{
		"It is made anew.": "anew", "Nobody listens": "Nobody", "is mended": "mended", "recommended": "", "a range of its own": "of its own",
		"what the engine does  not tell": "does  not tell", "for the sake of": "for the sake of", "restarted": "", "it is for users to say": "it is for users to",
	} {
		if got := turns.FindString(text); got != want {
			t.Errorf("%q: found %q, want %q", text, got, want)
		}
	}
}

// unwritten are reasons of docs/reference/events.md that stand in no string of our code.
var unwritten = map[string]string{
	"Ready": fromAPI, "MemoryPressure": fromAPI, "DiskPressure": fromAPI, "PIDPressure": fromAPI, "NetworkUnavailable": fromAPI,
	"ResizeDeferred": composed, "ResizeInfeasible": composed,
}

const (
	fromAPI  = "a constant of k8s.io/api"
	composed = "Resize and a constant of k8s.io/api"
)

// TestEvents: docs/reference/events.md names reasons that the code writes, and every reason of an Event that stands in a call.
func TestEvents(t *testing.T) {
	listed := map[string]bool{}
	for _, match := range regexp.MustCompile("`([A-Z][A-Za-z]{3,})`").FindAllStringSubmatch(read(t, "docs/reference/events.md"), -1) {
		listed[match[1]] = true
	}
	written := map[string]bool{}
	reason := regexp.MustCompile(`^[A-Z][a-z]+[A-Za-z]+$`)
	calls := 0
	for _, s := range load(t) {
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
				literal, ok := arg.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					continue
				}
				if text, _ := strconv.Unquote(literal.Value); reason.MatchString(text) {
					calls++
					if !listed[text] {
						t.Errorf("%s: docs/reference/events.md does not have the reason %s", s.positions.Position(call.Pos()), text)
					}
				}
			}
			return true
		})
	}
	excuse := exceptions(unwritten)
	for name := range listed {
		if !written[name] && !excuse.has(name) {
			t.Errorf("docs/reference/events.md has %s, which the code does not write", name)
		}
	}
	excuse.done(t)
	if len(listed) < 80 || calls < 20 {
		t.Errorf("%d reasons, %d calls: this test does not see them", len(listed), calls)
	}
}

// writesEvent tells whether a function is one of those by which the programs write Events.
func writesEvent(function ast.Expr) bool {
	name := ""
	switch f := function.(type) {
	case *ast.SelectorExpr:
		name = f.Sel.Name
	case *ast.Ident:
		name = f.Name
	}
	switch strings.ToLower(name) {
	case "event", "eventf", "podevent", "nodeevent", "warn":
		return true
	}
	return false
}
