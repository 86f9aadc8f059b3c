package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// spec is what is read of one entry of ginkgo's report: a test, or something around all tests.
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
	return strings.TrimSpace(strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " "))
}

// result is one test's.
type result struct {
	Name    string
	Took    time.Duration
	Message string // of a failure, or why the test skipped itself
	Log     string // of a failure: its path
}

// tally is one group's results.
type tally struct {
	sig                              string
	passed, failed, skipped, unknown int
	cannot                           int
	took                             time.Duration
}

// report is what came of a run.
type report struct {
	plan     plan
	when     time.Time
	took     time.Duration
	tallies  []tally
	passed   []result
	failures []result
	skipped  []result
	unknown  []string // planned, but without a result: the run ended before
	around   []result // failures outside tests
}

func (r *report) failed() bool { return len(r.failures)+len(r.unknown)+len(r.around) > 0 }

// loadReport reads a run's files and writes the logs of its failures.
func loadReport(dir string) (*report, error) {
	r := &report{}
	if err := readJSON(filepath.Join(dir, planFile), &r.plan); err != nil {
		return nil, fmt.Errorf("cannot find a run: %w", err)
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
			if bad(s.State) {
				r.around = append(r.around, result{Name: s.LeafNodeType, Took: s.RunTime, Message: s.Failure.Message})
			}
		}
	}
	if err := r.fill(dir, specs); err != nil {
		return nil, err
	}
	return r, nil
}

// bad says whether a state is a failure.
func bad(state string) bool {
	return slices.Contains([]string{"failed", "timedout", "panicked", "interrupted", "aborted"}, state)
}

// fill sorts the planned tests by their results.
func (r *report) fill(dir string, specs map[string]spec) error {
	bySIG := map[string]*tally{}
	group := func(name string) *tally {
		sig := sigOf(name)
		if bySIG[sig] == nil {
			bySIG[sig] = &tally{sig: sig}
		}
		return bySIG[sig]
	}
	for _, name := range r.plan.Tests {
		s, t := specs[name], group(name)
		t.took += s.RunTime
		one := result{Name: name, Took: s.RunTime, Message: s.Failure.Message}
		switch {
		case s.State == "passed":
			t.passed++
			r.passed = append(r.passed, one)
		case bad(s.State):
			t.failed++
			var err error
			if one.Log, err = writeFailure(dir, s); err != nil {
				return err
			}
			r.failures = append(r.failures, one)
		case s.State == "skipped" && s.Failure.Message != "": // without a message it was not reached
			t.skipped++
			r.skipped = append(r.skipped, one)
		default:
			t.unknown++
			r.unknown = append(r.unknown, name)
		}
	}
	for _, test := range r.plan.Cannot {
		group(test.Name).cannot++
	}
	for _, t := range bySIG {
		r.tallies = append(r.tallies, *t)
	}
	slices.SortFunc(r.tallies, func(a, b tally) int { return strings.Compare(a.sig, b.sig) })
	return nil
}

var notInFileNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// writeFailure writes all that a failed test said to a file of its own and returns its path.
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
	for _, one := range r.failures {
		fmt.Fprintf(out, "\nFAIL %s (%.1f s)\n%s\n    %s\n", one.Name, one.Took.Seconds(), firstLines(one.Message, 5), one.Log)
	}
	if len(r.skipped) > 0 {
		fmt.Fprintln(out, "\nskipped by the suite itself:")
		for _, one := range r.skipped {
			fmt.Fprintf(out, "  %s\n%s\n", one.Name, firstLines(one.Message, 1))
		}
	}
	if len(r.plan.Cannot) > 0 {
		fmt.Fprintln(out, "\nnot run on this machine:")
		for _, one := range r.plan.Cannot {
			fmt.Fprintf(out, "  %s\n    %s\n", one.Name, one.Reason)
		}
	}
	if len(r.unknown) > 0 {
		fmt.Fprintln(out, "\nnot reached:")
		for _, name := range r.unknown {
			fmt.Fprintf(out, "  %s\n", name)
		}
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range r.table() {
		fmt.Fprintln(w, strings.Join(row, "\t")+"\t")
	}
	w.Flush()
	fmt.Fprintf(out, "\n%s\ntook %s\n", r.plan.Selection, r.took.Round(time.Second))
}

// table is the tally per group, with a head and a sum.
func (r *report) table() [][]string {
	rows := [][]string{{"", "passed", "failed", "skipped", "cannot run here", "not reached", "busy seconds"}}
	all := tally{sig: "all"}
	for _, t := range r.tallies {
		all.passed, all.failed, all.skipped = all.passed+t.passed, all.failed+t.failed, all.skipped+t.skipped
		all.cannot, all.unknown, all.took = all.cannot+t.cannot, all.unknown+t.unknown, all.took+t.took
	}
	for _, t := range append(slices.Clone(r.tallies), all) {
		row := []string{t.sig}
		for _, n := range []int{t.passed, t.failed, t.skipped, t.cannot, t.unknown} {
			row = append(row, fmt.Sprint(n))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.0f", t.took.Seconds())))
	}
	return rows
}

// firstLines are the first n lines of text that say something, indented and not too long. Objects that the suite prints in the middle
// of its messages are left out: they would be all that one sees.
func firstLines(text string, n int) string {
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
