// Package page extracts the commands in a page of documentation, so that tests can check them.
package page

import (
	"regexp"
	"strings"
)

// Command is one command in a page.
type Command struct {
	Line  int    // in the page, from 1
	Text  string // as the user types it
	Block bool   // in a block, not in a sentence or a table
	Env   []string
	Argv  []string
}

var (
	span       = regexp.MustCompile("`([^`]+)`")
	comment    = regexp.MustCompile(`\s+#.*$|\s{2,}.*$`) // comments next to a command in a block
	assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*=`)
	separator  = regexp.MustCompile(`\s(?:&&|\|\||\|)\s|;\s`)
)

// Commands returns the commands that start with one of the words in begins, possibly after environment variables: in
// blocks (indented lines) and between backquotes.
func Commands(text string, begins ...string) []Command {
	var all []Command
	add := func(number int, line string, block bool) {
		for _, part := range separator.Split(line, -1) {
			c := Command{Line: number, Text: part, Block: block, Argv: words(part)}
			for len(c.Argv) > 0 && assignment.MatchString(c.Argv[0]) {
				c.Env, c.Argv = append(c.Env, c.Argv[0]), c.Argv[1:]
			}
			if len(c.Argv) == 0 {
				continue
			}
			for _, begin := range begins {
				if c.Argv[0] == begin {
					all = append(all, c)
				}
			}
		}
	}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\n")
		if block, ok := strings.CutPrefix(line, "    "); ok {
			add(number, comment.ReplaceAllString(block, ""), true)
			continue
		}
		for _, match := range span.FindAllStringSubmatch(line, -1) {
			add(number, strings.ReplaceAll(match[1], `\|`, "|"), false) // escaped in a table
		}
	}
	return all
}

// words splits a line at spaces outside quotes.
func words(line string) []string {
	var all []string
	var word strings.Builder
	var quote rune
	inside := false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, inside = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if inside {
				all = append(all, word.String())
				word.Reset()
			}
			inside = false
		default:
			inside = true
			word.WriteRune(r)
		}
	}
	if inside {
		all = append(all, word.String())
	}
	return all
}
