package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// result is the outcome of one package's tests.
type result struct {
	Package string // pkg/host
	Seconds float64
	Failure string // empty means that they passed
}

// All tests run with the simulators. Some also run in a bare prefix, which has none of what Wine lacks.
const (
	simulated = ""
	bare      = "-bare"
)

var kinds = []string{simulated, bare}

// lacking are packages with tests for a Windows without the simulated features. They also run in a bare prefix.
var lacking = []string{"cmd/kube-proxy/app", "pkg/hns", "pkg/network/doctor", "pkg/network/hostnet", "pkg/proxy/relay/addresses", "pkg/routes"}

// lanes is the number of packages tested with simulators in parallel. It is fixed, so that the tests that share a World, and their order,
// do not depend on the machine's speed.
const lanes = 2

// file returns the path of one of a package's files in the tests' directory.
func (j job) file(pkg, kind, suffix string) string {
	return filepath.Join(j.root, "_output/wine/tests", strings.ReplaceAll(pkg, "/", "-")+kind+suffix)
}

func (j job) profile(pkg, kind string) string { return j.file(pkg, kind, ".cover") }

// programs returns the directories of the test binaries. The go command names a binary by the last element of its package path,
// so that one directory can hold those it builds together.
func (j job) programs() map[string]string {
	places := map[string]string{}
	taken := map[string]int{}
	for _, pkg := range j.packages {
		name := path.Base(pkg)
		places[pkg] = filepath.Join(j.root, "_output/wine/tests", strconv.Itoa(taken[name]), name+".test.exe")
		taken[name]++
	}
	return places
}

// compile builds the test binaries without debug information. Those that are up to date stay.
func (j job) compile(ctx context.Context) error {
	overlay, err := rig.Overlay(ctx)
	if err != nil {
		return err
	}
	together := map[string][]string{}
	for pkg, program := range j.programs() {
		together[filepath.Dir(program)] = append(together[filepath.Dir(program)], "./"+pkg)
	}
	for dir, packages := range together {
		args := []string{"test", "-c", "-vet=off", "-cover", "-overlay=" + overlay, "-ldflags=-s -w", "-o", dir + "/"}
		if err := rig.Go(ctx, append(args, packages...)...); err != nil {
			return err
		}
	}
	return nil
}

// test runs the tests of all packages and writes results and profiles. A failed test is a result, not an error.
func (j job) test(ctx context.Context) error {
	results := make([]result, len(j.packages))
	errs := make([]error, lanes+1)
	var mu sync.Mutex
	var group sync.WaitGroup
	run := func(lane int, kind string, mine func(i int, pkg string) bool) {
		group.Go(func() {
			errs[lane] = j.lane(ctx, kind, mine, func(i int, took time.Duration, err error) {
				mu.Lock()
				defer mu.Unlock()
				results[i].Package = j.packages[i]
				results[i].Seconds += took.Seconds()
				if err != nil {
					results[i].Failure = strings.TrimSpace(results[i].Failure + "\n" + err.Error())
				}
			})
		})
	}
	for lane := range lanes {
		run(lane, simulated, func(i int, _ string) bool { return i%lanes == lane })
	}
	run(lanes, bare, func(_ int, pkg string) bool { return slices.Contains(lacking, pkg) })
	group.Wait()
	text, err := json.MarshalIndent(results, "", "  ")
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	return os.WriteFile(j.resultsFile(), append(text, '\n'), 0o644)
}

func (j job) resultsFile() string { return filepath.Join(j.root, "_output/wine/tests/results.json") }

// results returns the results of the last run.
func (j job) results() (all []result, err error) {
	text, err := os.ReadFile(j.resultsFile())
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the tests' results: %w", err)
	}
	return all, nil
}

// lane runs tests one package after another, in its own prefix.
func (j job) lane(ctx context.Context, kind string, mine func(i int, pkg string) bool, ended func(i int, took time.Duration, err error)) error {
	p, err := rig.Open(ctx, j.build)
	if err != nil {
		return err
	}
	defer p.Close()
	if kind == simulated {
		world, err := simulate(ctx, p)
		if err != nil {
			return err
		}
		defer world.Close()
	}
	programs := j.programs()
	for i, pkg := range j.packages {
		if mine(i, pkg) {
			begin := time.Now()
			err := j.testPackage(ctx, p, pkg, programs[pkg], kind)
			ended(i, time.Since(begin), err)
		}
	}
	return nil
}

// attempts is how often a test binary that ends without output is started: Wine lost one in some hundred starts.
const attempts = 3

// testPackage runs the tests of one package in its own directory, as go test does, for at most five minutes.
func (j job) testPackage(ctx context.Context, p *rig.Prefix, pkg, program, kind string) error {
	inside := p.Path(`C:\windows\temp\profile`) // a place that programs in the prefix may write to
	args := []string{"-test.timeout=20m", "-test.coverprofile=" + rig.WindowsPath(inside)}
	if names := skippedTests(pkg); len(names) > 0 {
		args = append(args, "-test.skip=^("+strings.Join(names, "|")+")$")
	}
	if kind == bare {
		args = append(args, "-test.run=Windows|WithoutIPHelper|WithoutHNS")
	}
	var said output.Said
	var failed error
	for range attempts {
		cmd := p.Command(ctx, program, args...)
		cmd.Dir = filepath.Join(j.root, pkg)
		if said, failed = p.Finish(cmd); failed == nil || said.String() != "" || ctx.Err() != nil {
			break // a test binary that ran prints at least PASS or FAIL
		}
	}
	log := j.file(pkg, kind, ".log")
	if err := os.WriteFile(log, []byte(said.Stdout+said.Stderr), 0o644); err != nil {
		return err
	}
	if failed != nil {
		failed = fmt.Errorf("%w: %s (the whole log: %s)", failed, failures(said.Stdout+said.Stderr), log)
	}
	return errors.Join(failed, moveProfile(inside, j.profile(pkg, kind)))
}

// moveProfile moves a profile out of a prefix. A missing profile is not an error: the run wrote none.
func moveProfile(from, to string) error {
	text, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		err = os.Remove(to)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return err
	}
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, text, 0o644), os.Remove(from))
}

// failures returns the part of a test's output that reports failures.
func failures(out string) string {
	var kept []string
	for line := range strings.SplitSeq(out, "\n") {
		if strings.Contains(line, "--- FAIL") || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "winkube shim:") || strings.Contains(line, "_test.go:") {
			kept = append(kept, strings.TrimSpace(line))
		}
	}
	return strings.Join(kept[:min(len(kept), 12)], "\n    ")
}

// simulate adds what Wine lacks to the prefix: HNS, IP Helper, netsh, counters. Later packages' tests find the state that
// earlier ones left.
func simulate(ctx context.Context, p *rig.Prefix) (*sim.World, error) {
	world := sim.New(p.Build)
	world.Compute, world.Address = compute, netip.MustParseAddr("192.168.1.3") // as in pkg/hns overlay_windows_test.go
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

// compute simulates the containers that the tests of pkg/hcs measure.
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
