package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// spec has the fields that are used of an entry in ginkgo's report: a test, or a step around all tests.
type spec struct {
	ContainerHierarchyTexts    []string
	LeafNodeType               string
	LeafNodeText               string
	State                      string // passed, failed, skipped, timedout, panicked, interrupted, aborted, pending
	StartTime                  time.Time
	RunTime                    time.Duration
	CapturedGinkgoWriterOutput string
	CapturedStdOutErr          string
	Failure                    struct {
		Message  string
		Location struct {
			FileName       string
			LineNumber     int
			FullStackTrace string
		}
	}
}

func (s spec) name() string {
	texts := append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText)
	texts = slices.DeleteFunc(texts, func(text string) bool { return text == "" }) // the suite's list has no trace of them
	return strings.TrimSpace(strings.Join(texts, " "))
}

// state is the result of a test.
type state string

const (
	passed    state = "passed"
	failed    state = "failed"
	skipped   state = "skipped"   // by the suite itself
	cannot    state = "cannot"    // not run: this machine cannot
	unreached state = "unreached" // planned, but without a verdict when the run ended
)

// outcome is the result of one test.
type outcome struct {
	Name    string
	State   state
	Took    time.Duration
	Message string `json:",omitempty"` // of a failure, or why the test was not run
	Log     string `json:"-"`          // path of a failure's log
}

// report is the result of a run.
type report struct {
	plan     plan
	when     time.Time
	took     time.Duration
	outcomes []outcome // in the plan's order
	around   []outcome // failures outside tests
}

func (r *report) failed() bool {
	return len(r.around) > 0 || slices.ContainsFunc(r.outcomes, func(o outcome) bool { return o.State == failed || o.State == unreached })
}

// loadReport reads a run's files and writes the logs of its failures.
func loadReport(dir string) (*report, error) {
	r := &report{}
	if err := readJSON(filepath.Join(dir, planFile), &r.plan); err != nil {
		return nil, fmt.Errorf("cannot find a previous run; run make conformance first: %w", err)
	}
	var suites []struct {
		StartTime   time.Time
		RunTime     time.Duration
		SpecReports []spec
	}
	if err := readJSON(filepath.Join(dir, reportFile), &suites); err != nil {
		return nil, fmt.Errorf("cannot read the suite's report: %w", err)
	}
	specs := map[string]spec{}
	for _, suite := range suites {
		r.when, r.took = suite.StartTime, r.took+suite.RunTime
		for _, s := range suite.SpecReports {
			if s.LeafNodeType == "It" {
				specs[s.name()] = s
				continue
			}
			if verdict(s) == failed {
				r.around = append(r.around, outcome{Name: s.LeafNodeType, State: failed, Took: s.RunTime, Message: s.Failure.Message})
			}
		}
	}
	for _, name := range r.plan.Tests {
		s := specs[name]
		one := outcome{Name: name, State: verdict(s), Took: s.RunTime, Message: s.Failure.Message}
		if one.State == failed {
			var err error
			if one.Log, err = writeFailure(dir, s); err != nil {
				return nil, err
			}
		}
		r.outcomes = append(r.outcomes, one)
	}
	for _, test := range r.plan.Cannot {
		r.outcomes = append(r.outcomes, outcome{Name: test.Name, State: cannot, Message: test.Reason})
	}
	return r, nil
}

// verdict converts ginkgo's state. A test skipped without a reason was not reached; an interrupted test has no verdict.
func verdict(s spec) state {
	switch s.State {
	case "passed":
		return passed
	case "failed", "timedout", "panicked", "aborted":
		return failed
	case "skipped":
		if s.Failure.Message != "" {
			return skipped
		}
	}
	return unreached
}

// having returns the outcomes with a state.
func having(outcomes []outcome, s state) []outcome {
	var out []outcome
	for _, one := range outcomes {
		if one.State == s {
			out = append(out, one)
		}
	}
	return out
}

var notInFileNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// writeFailure writes the complete output of a failed test to a separate file and returns its path.
func writeFailure(dir string, s spec) (string, error) {
	name := strings.Trim(notInFileNames.ReplaceAllString(s.name(), "-"), "-")
	if len(name) > 150 {
		name = name[:140] + "-" + sum([]byte(name))[:9]
	}
	path := filepath.Join(dir, failureDir, name+".log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s\n%s, started %s, took %s\n\n%s\n\nat %s:%d\n%s\n\n%s\n%s", s.name(), s.State, s.StartTime.Format(time.TimeOnly), s.RunTime.Round(time.Millisecond),
		s.Failure.Message, s.Failure.Location.FileName, s.Failure.Location.LineNumber, s.Failure.Location.FullStackTrace,
		s.CapturedGinkgoWriterOutput, s.CapturedStdOutErr)
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// print writes the table and the failures.
func (r *report) print(out io.Writer) {
	for _, one := range r.around {
		fmt.Fprintf(out, "\nFAIL outside any test: %s\n%s\n", one.Name, firstLines(one.Message, 8))
	}
	for _, one := range having(r.outcomes, failed) {
		fmt.Fprintf(out, "\nFAIL %s (%.1f s)\n%s\n    %s\n", one.Name, one.Took.Seconds(), firstLines(one.Message, 5), one.Log)
	}
	for _, kind := range []struct {
		state state
		head  string
		lines int // of the message
	}{{skipped, "skipped by the suite itself:", 1}, {cannot, "not run on this machine:", 1}, {unreached, "not reached, or interrupted:", 0}} {
		list := having(r.outcomes, kind.state)
		if len(list) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s\n", kind.head)
		for _, one := range list {
			fmt.Fprintf(out, "  %s\n", one.Name)
			if text := firstLines(one.Message, kind.lines); text != "" {
				fmt.Fprintln(out, text)
			}
		}
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range table(r.outcomes) {
		fmt.Fprintln(w, strings.Join(row, "\t")+"\t")
	}
	w.Flush()
	fmt.Fprintf(out, "\n%s\ntook %s\n", r.plan.Selection, r.took.Round(time.Second))
}

// table counts outcomes per group, with a header and a total.
func table(outcomes []outcome) [][]string {
	states := []state{passed, failed, skipped, cannot, unreached}
	type tally struct {
		count map[state]int
		took  time.Duration
	}
	all := &tally{count: map[state]int{}}
	groups := map[string]*tally{}
	for _, one := range outcomes {
		sig := sigOf(one.Name)
		if groups[sig] == nil {
			groups[sig] = &tally{count: map[state]int{}}
		}
		for _, t := range []*tally{groups[sig], all} {
			t.count[one.State]++
			t.took += one.Took
		}
	}
	rows := [][]string{{"", "passed", "failed", "skipped", "cannot run here", "not reached", "busy seconds"}}
	row := func(name string, t *tally) {
		cells := []string{name}
		for _, s := range states {
			cells = append(cells, fmt.Sprint(t.count[s]))
		}
		rows = append(rows, append(cells, fmt.Sprintf("%.0f", t.took.Seconds())))
	}
	for _, sig := range slices.Sorted(maps.Keys(groups)) {
		row(sig, groups[sig])
	}
	row("all", all)
	return rows
}

// firstLines returns the first n meaningful lines of text, indented and shortened. It omits objects that the suite
// prints within its messages: they would hide everything else.
func firstLines(text string, n int) string {
	if n == 0 {
		return ""
	}
	var lines []string
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if inside {
			inside = line != "}"
			continue
		}
		inside = strings.HasSuffix(line, ": {")
		if line = strings.TrimSpace(line); !strings.ContainsFunc(line, unicode.IsLetter) {
			continue
		}
		if len(line) > 300 {
			line = line[:300] + "..."
		}
		if lines = append(lines, "    "+line); len(lines) == n {
			break
		}
	}
	return strings.Join(lines, "\n")
}

func readJSON(path string, to any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, to)
}
