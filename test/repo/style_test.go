package repo_test

import (
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

// longest is the maximum average number of words in a page's sentences.
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
		t.Fatalf("found only %d banned turns in docs/style.md: fix how this test reads its table", len(all))
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(strings.Join(all, "|"), " ", `\s+`) + `)\b`)
}

// pages returns the text of every page by its path relative to the repository's root.
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
		t.Fatalf("found only %d pages: fix how this test finds docs", len(all))
	}
	return all
}

// unprivileged matches the user nobody in an /etc/passwd or /etc/group that Go code writes.
var unprivileged = regexp.MustCompile(`(?m)^nobody:x:65534:(65534:nobody:)?`)

var (
	inlineCode = regexp.MustCompile("``.+?``|`[^`]*`")
	listMark   = regexp.MustCompile(`^\s*(?:[-*]|\d+\.)\s+`)
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
)

// prose returns a page's text without code; tables includes the rows of tables. It keeps the number of lines.
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

// sentences returns the number of sentences and words in a page's paragraphs and lists.
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
	for name, text := range pages(t) {
		if name == "docs/style.md" {
			continue
		}
		for i, line := range prose(text, true) {
			for _, found := range turns.FindAllString(line, -1) {
				t.Errorf("%s:%d: %q: docs/style.md says what to write instead", name, i+1, found)
			}
		}
		if count, words := sentences(text); count > 0 && float64(words)/float64(count) > longest {
			t.Errorf("%s: sentences have %.1f words on average, want at most %d", name, float64(words)/float64(count), longest)
		}
	}
	if lines := strings.Count(read(t, "README.md"), "\n"); lines >= 100 {
		t.Errorf("README.md has %d lines, want fewer than 100: move text to docs", lines)
	}
}

func TestPlainCode(t *testing.T) {
	turns := banned(t)
	for _, s := range load(t) {
		if s.path == "test/repo/style_test.go" {
			continue
		}
		say := func(node ast.Node, text string) {
			for _, found := range turns.FindAllString(text, -1) {
				t.Errorf("%s: %q: docs/style.md says what to write instead", s.positions.Position(node.Pos()), found)
			}
		}
		for _, group := range s.syntax.Comments {
			say(group, strings.ReplaceAll(group.Text(), "\n", " "))
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, _ := strconv.Unquote(literal.Value)
				say(literal, unprivileged.ReplaceAllString(text, ""))
			}
			return true
		})
	}
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
		t.Errorf("found only %d scripts: fix how this test finds them", found)
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
