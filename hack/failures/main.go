// Command failures prints what failed in the events of a run of go test -json: for each failed test the messages of its t.Error, t.Fatal and t.Log,
// shortened. Tests write long logs to t.Output, which has no source line and is left out. A long run's output ends with it, so that the one line that
// says why need not be searched for.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

const (
	messages = 12  // of a test, the last ones
	length   = 600 // of a message, in bytes
	lines    = 20  // of a package that failed without a failed test
)

// event is one of test2json's (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
	ImportPath, FailedBuild       string // of build-output, and of the fail of a package that needs that build
}

// message matches the first line of a message; its further lines are indented by eight spaces.
var message = regexp.MustCompile(`^ {4}\S+\.go:\d+: `)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: failures EVENTS")
		os.Exit(2)
	}
	file, err := os.Open(os.Args[1])
	if err == nil {
		defer file.Close()
		err = report(os.Stdout, file)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "failures:", err)
		os.Exit(1)
	}
}

type key struct{ pkg, test string }

// report reads events and writes a paragraph for each failed test, in the order in which they failed. A test whose subtests failed, and that
// printed no message, is left out, and so is its package.
func report(w io.Writer, events io.Reader) error {
	output := map[key][]string{}
	blamed := map[key]bool{} // tests and packages of which a failed test was printed
	scanner := bufio.NewScanner(events)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			return fmt.Errorf("%w: want a line of go test -json, got %.80q", err, scanner.Text())
		}
		at := key{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			at = key{pkg: e.ImportPath}
			fallthrough
		case "output":
			output[at] = append(output[at], strings.TrimRight(e.Output, "\n"))
		case "pass", "skip":
			delete(output, at)
		case "fail":
			said := said(output[at])
			if e.Test == "" {
				all := output[at]
				if e.FailedBuild != "" {
					all = output[key{pkg: e.FailedBuild}]
				}
				said = all[max(0, len(all)-lines):]
			}
			if len(said) == 0 && e.Test != "" && !blamed[at] {
				said = []string{"    it printed no message"}
			}
			if blamed[at] && (e.Test == "" || len(said) == 0) {
				continue
			}
			fmt.Fprintf(w, "%s failed after %.0f s (%s):\n%s\n", cmp.Or(e.Test, "the package"), e.Elapsed, e.Package, strings.Join(said, "\n"))
			blame(blamed, at)
		}
	}
	return scanner.Err()
}

// blame notes that the failure of a test explains those of the tests around it and of its package.
func blame(blamed map[key]bool, at key) {
	for at.test != "" {
		at.test = at.test[:max(0, strings.LastIndexByte(at.test, '/'))]
		blamed[at] = true
	}
}

// said returns the last messages among a test's lines.
func said(all []string) []string {
	var found []string
	inside := false
	for _, line := range all {
		switch {
		case message.MatchString(line) || strings.HasPrefix(line, "panic: "):
			found, inside = append(found, line), true
		case inside && strings.HasPrefix(line, "        "):
			found[len(found)-1] += "\n" + line
		default:
			inside = false
		}
	}
	found = found[max(0, len(found)-messages):]
	for i, one := range found {
		if len(one) > length {
			found[i] = fmt.Sprintf("%s\n        ... and %d bytes more", strings.ToValidUTF8(one[:length], ""), len(one)-length)
		}
	}
	return found
}
