// Command cover runs the product's own tests under Wine and measures how much of the Windows-specific code they
// execute.
//
//	build:  go test -c for Windows, all packages together --> _output/wine/tests
//	test:   in lanes, each with its own rig.Prefix and sim.World --> a profile and a result per package, there too
//	report: profiles --> a table of *_windows.go and of Windows branches
//
// It adds the profiles of programs that the suites ran (rig.Counted), if there are any.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/winkube/winkube/test/windows/rig"
)

const module = "github.com/winkube/winkube/"

// job is the parsed command line.
type job struct {
	build    int // the Windows build
	root     string
	packages []string // without the module path: pkg/host
	missed   bool
	goal     float64
}

// steps are the steps of a job. Each uses the files of the earlier ones in the tests' directory.
var steps = []step{{"build", job.compile}, {"test", job.test}, {"report", job.report}}

type step struct {
	name string
	do   func(job, context.Context) error
}

func main() {
	build := flag.Int("build", 20348, "the Windows Server to claim")
	packages := flag.String("packages", "./pkg/... ./cmd/...", "what to test")
	goal := flag.Float64("goal", 0, "percent of *_windows.go that must be executed, and of the branches for Windows")
	missed := flag.Bool("missed", false, "list what is for Windows and never ran")
	only := flag.String("only", "build,test,report", "which steps to do; each takes what the last run of those before it left")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, job{build: *build, missed: *missed, goal: *goal}, strings.Fields(*packages), strings.Split(*only, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, j job, patterns, only []string) (err error) {
	if j.root, err = rig.Root(); err != nil {
		return err
	}
	if j.packages, err = list(ctx, j.root, patterns); err != nil {
		return err
	}
	for _, name := range only {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			return fmt.Errorf("-only=%s: unknown step %q: want build, test or report", strings.Join(only, ","), name)
		}
	}
	for _, step := range steps {
		if slices.Contains(only, step.name) {
			if err := step.do(j, ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// list returns the packages that have Windows tests or Windows-only files.
func list(ctx context.Context, root string, patterns []string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"}, patterns...)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOOS=windows")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list packages: %w", err)
	}
	var packages []string
	for _, path := range strings.Fields(string(out)) {
		packages = append(packages, strings.TrimPrefix(path, module))
	}
	return packages, nil
}

// report prints the coverage of the tests and the end-to-end run. The error names failed tests and missed goals.
func (j job) report(context.Context) error {
	results, err := j.results()
	if err != nil {
		return err
	}
	blocks := map[string]*block{}
	var errs []error
	for _, r := range results {
		if r.Failure != "" {
			errs = append(errs, fmt.Errorf("%s: %s", r.Package, r.Failure))
		}
		for _, kind := range kinds {
			if err := addProfile(j.profile(r.Package, kind), blocks); err != nil {
				errs = append(errs, err)
			}
		}
	}
	extra, err := filepath.Glob(filepath.Join(j.root, "_output/wine/cover/*.txt"))
	if err != nil {
		return err
	}
	joined := map[string]*block{}
	for _, path := range extra {
		if err := addProfile(path, joined); err != nil {
			errs = append(errs, err)
		}
	}
	merge(blocks, joined)
	shares, missed, err := measure(j.root, blocks)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	total := printTable(j.build, results, shares)
	for what, got := range map[string]float64{"*_windows.go": rate(total.taggedRan, total.tagged), "branches for Windows": rate(total.branchesRan, total.branches)} {
		if got < j.goal {
			errs = append(errs, fmt.Errorf("%.1f %% of the statements in %s were executed, want %.0f %%: run with -missed to list the rest", got, what, j.goal))
		}
	}
	if j.missed {
		fmt.Println("never executed:\n  " + strings.Join(missed, "\n  "))
	}
	return errors.Join(errs...)
}

func addProfile(path string, blocks map[string]*block) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return readProfile(file, blocks)
}

func printTable(build int, results []result, shares map[string]*share) (total share) {
	fmt.Printf("executed under Wine as Windows build %d (what Wine fakes is skipped, see skip.go)\n", build)
	fmt.Printf("%-22s %-7s %8s  %-18s %-18s\n", "package", "tests", "seconds", "*_windows.go", "Windows branches")
	names := []string{}
	for _, r := range results {
		names = append(names, r.Package)
		verdict := "ok"
		if r.Failure != "" {
			verdict = "FAIL"
		}
		s := shares[r.Package]
		if s == nil {
			s = &share{}
		}
		total.add(*s)
		fmt.Printf("%-22s %-7s %8.1f  %-18s %-18s\n", r.Package, verdict, r.Seconds, percent(s.taggedRan, s.tagged), percent(s.branchesRan, s.branches))
	}
	for pkg, s := range shares {
		if !slices.Contains(names, pkg) {
			total.add(*s)
			fmt.Printf("%-22s %-7s %8s  %-18s %-18s\n", pkg, "-", "-", percent(s.taggedRan, s.tagged), percent(s.branchesRan, s.branches))
		}
	}
	fmt.Printf("%-22s %-7s %8s  %-18s %-18s\n", "all", "", "", percent(total.taggedRan, total.tagged), percent(total.branchesRan, total.branches))
	return total
}

// rate returns a percentage. It is 100 if all is 0.
func rate(ran, all int) float64 {
	if all == 0 {
		return 100
	}
	return 100 * float64(ran) / float64(all)
}

func percent(ran, all int) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%5.1f %% of %d", rate(ran, all), all)
}
