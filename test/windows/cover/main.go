// Command cover runs the product's own tests under Wine and measures how much of what is for Windows they execute.
//
//	go test -c for Windows, per package --> rig.Prefix with sim.World --> coverage profiles --> a table of *_windows.go and of Windows branches
//
// Profiles of kubelet.exe and proxy.exe from the end-to-end run are added when they are there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/sim"
)

const module = "github.com/winkube/winkube/"

func main() {
	build := flag.Int("build", 20348, "the Windows Server to claim")
	packages := flag.String("packages", "./pkg/... ./cmd/...", "what to test")
	goal := flag.Float64("goal", 0, "percent of *_windows.go that must be executed, and of the branches for Windows")
	missed := flag.Bool("missed", false, "list what is for Windows and never ran")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *build, strings.Fields(*packages), *missed, *goal); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// result is what became of one package's tests.
type result struct {
	pkg  string // pkg/host
	took time.Duration
	err  error
}

func run(ctx context.Context, build int, patterns []string, listMissed bool, goal float64) error {
	root, err := rig.Root()
	if err != nil {
		return err
	}
	packages, err := list(ctx, root, patterns)
	if err != nil {
		return err
	}
	p, err := rig.Open(ctx, build)
	if err != nil {
		return err
	}
	defer p.Close()
	world, err := simulate(ctx, p)
	if err != nil {
		return err
	}
	defer world.Close()
	bare, err := rig.Open(ctx, build)
	if err != nil {
		return err
	}
	defer bare.Close()
	overlay, err := rig.Overlay(ctx)
	if err != nil {
		return err
	}
	results := make([]result, len(packages))
	built := make(chan int, len(packages))
	var group sync.WaitGroup
	group.Go(func() {
		defer close(built)
		for i, pkg := range packages {
			results[i] = result{pkg: pkg}
			args := []string{"test", "-c", "-vet=off", "-cover", "-overlay=" + overlay, "-o", exe(root, pkg), "./" + pkg}
			results[i].err = rig.Go(ctx, args...)
			built <- i
		}
	})
	for i := range built { // a package is tested while the next is built
		if r := &results[i]; r.err == nil {
			begin := time.Now()
			r.err = test(ctx, p, root, r.pkg, "")
			if slices.Contains(lacking, r.pkg) {
				r.err = errors.Join(r.err, test(ctx, bare, root, r.pkg, "-bare", "-test.run=Windows|WithoutIPHelper|WithoutHNS"))
			}
			r.took = time.Since(begin)
		}
	}
	group.Wait()
	return report([]*rig.Prefix{p, bare}, root, results, listMissed, goal)
}

// lacking are packages with tests of a Windows that lacks what the simulators have: these run in a bare prefix as well.
var lacking = []string{"cmd/kube-proxy/app", "pkg/hns", "pkg/network", "pkg/proxy/relay", "pkg/routes"}

// simulate gives the prefix what Wine lacks: HNS, IP Helper, netsh, counters. Each package's tests find it as it was left.
func simulate(ctx context.Context, p *rig.Prefix) (*sim.World, error) {
	world := sim.New(p.Build)
	world.Compute, world.Address = compute, netip.MustParseAddr("192.168.1.3") // as pkg/hns overlay_windows_test.go has it
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	world.Serve(listener)
	if err := world.Install(ctx, p, listener.Addr()); err != nil {
		world.Close()
		return nil, err
	}
	return world, nil
}

// compute are the containers that the tests of pkg/hcs measure.
func compute(id string) (properties string, found bool) {
	switch id {
	case "winkube-test":
		return `{"Id":"winkube-test","SystemType":"Container","Owner":"docker","Statistics":{"Processor":{"TotalRuntime100ns":30000000},` +
			`"Memory":{"MemoryUsageCommitBytes":5242880,"MemoryUsagePrivateWorkingSetBytes":4194304},` +
			`"Network":[{"EndpointId":"e1","BytesReceived":1,"BytesSent":2,"DroppedPacketsIncoming":3,"DroppedPacketsOutgoing":4}]}}`, true
	case "winkube-test-unreadable":
		return `{"Id":`, true
	}
	return "", false
}

// list finds the packages that have tests for Windows, or files of their own for it.
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

func exe(root, pkg string) string {
	return filepath.Join(root, "_output/wine/tests", strings.ReplaceAll(pkg, "/", "-")+".exe")
}

func profile(p *rig.Prefix, pkg string) string {
	return p.Path(`C:\windows\temp\` + strings.ReplaceAll(pkg, "/", "-") + ".cover")
}

// test runs the tests of one package in its own directory, as go test does; kind tells one run of it from the other. They may not take longer
// than five minutes.
func test(ctx context.Context, p *rig.Prefix, root, pkg, kind string, more ...string) error {
	if _, err := os.Stat(exe(root, pkg)); errors.Is(err, os.ErrNotExist) {
		return nil // no test file after all
	}
	args := []string{"-test.timeout=5m", "-test.coverprofile=" + rig.WindowsPath(profile(p, pkg))}
	if names := skippedTests(pkg); len(names) > 0 {
		args = append(args, "-test.skip=^("+strings.Join(names, "|")+")$")
	}
	cmd := p.Command(ctx, exe(root, pkg), append(args, more...)...)
	cmd.Dir = filepath.Join(root, pkg)
	out, err := cmd.CombinedOutput()
	log := filepath.Join(root, "_output/wine/tests", strings.ReplaceAll(pkg, "/", "-")+kind+".log")
	if err := os.WriteFile(log, out, 0o644); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %s (all of it: %s)", err, failures(string(out)), log)
	}
	return nil
}

// failures is the part of a test's output that says what failed.
func failures(out string) string {
	var kept []string
	for line := range strings.SplitSeq(out, "\n") {
		if strings.Contains(line, "--- FAIL") || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "winkube shim:") || strings.Contains(line, "_test.go:") {
			kept = append(kept, strings.TrimSpace(line))
		}
	}
	return strings.Join(kept[:min(len(kept), 12)], "\n    ")
}

func report(prefixes []*rig.Prefix, root string, results []result, listMissed bool, goal float64) error {
	blocks := map[string]*block{}
	var errs []error
	for _, r := range results {
		if r.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.pkg, r.err))
		}
		for _, p := range prefixes {
			if err := addProfile(profile(p, r.pkg), blocks); err != nil {
				errs = append(errs, err)
			}
		}
	}
	extra, err := filepath.Glob(filepath.Join(root, "_output/wine/cover/*.txt"))
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
	shares, missed, err := measure(root, blocks)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	total := printTable(prefixes[0].Build, results, shares)
	for what, got := range map[string]float64{"*_windows.go": rate(total.taggedRan, total.tagged), "branches for Windows": rate(total.branchesRan, total.branches)} {
		if got < goal {
			errs = append(errs, fmt.Errorf("%.1f %% of the statements in %s were executed, the goal is %.0f %%: -missed lists the rest", got, what, goal))
		}
	}
	if listMissed {
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
		names = append(names, r.pkg)
		verdict := "ok"
		if r.err != nil {
			verdict = "FAIL"
		}
		s := shares[r.pkg]
		if s == nil {
			s = &share{}
		}
		total.add(*s)
		fmt.Printf("%-22s %-7s %8.1f  %-18s %-18s\n", r.pkg, verdict, r.took.Seconds(), percent(s.taggedRan, s.tagged), percent(s.branchesRan, s.branches))
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

// rate is a share in percent; of nothing everything ran.
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
