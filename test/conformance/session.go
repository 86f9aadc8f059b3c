package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/winkube/winkube/test/lab"
)

// Files of a run, below _output/conformance.
const (
	planFile   = "plan.json"   // the plan
	reportFile = "report.json" // ginkgo's own
	junitFile  = "junit.xml"
	outputFile = "output.log" // the suite's complete output
	failureDir = "failures"   // a log per failed test
)

// session is one run of the suite.
type session struct {
	cluster *lab.Cluster
	machine *lab.Machine // with VM=1, where the tests' pods run
	dir     string
	plan    plan
	options options
	out     *os.File
}

// run runs the planned tests. It returns an error if the suite could not run; failed tests are not an error.
func (s *session) run(ctx context.Context) error {
	if err := s.clear(); err != nil {
		return err
	}
	output, err := os.Create(filepath.Join(s.dir, outputFile))
	if err != nil {
		return err
	}
	defer output.Close()
	fmt.Fprintf(s.out, "%d tests: %s\n", len(s.plan.Tests), s.plan.Selection)

	stop, err := startRegistries(ctx, s.cluster)
	if err != nil {
		return err
	}
	defer stop()
	if s.machine != nil { // it has no registry, and uses a node's
		end, err := s.machine.Lend(ctx, s.cluster.Nodes[0], netip.MustParseAddrPort(registryAddress))
		if err != nil {
			return err
		}
		defer end()
	}
	view := newProgress(s.out, len(s.plan.Tests))
	argv, err := s.argv()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.dir, suiteEnv(s.cluster), io.MultiWriter(output, view), output
	// The first interrupt lets running tests clean up, which takes a while; otherwise namespaces would remain.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 3 * time.Minute
	err = cmd.Run()
	view.close()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		if _, missing := os.Stat(filepath.Join(s.dir, reportFile)); missing == nil {
			return nil // the report lists failed tests, and those not reached after an interrupt
		}
	}
	if err != nil {
		return fmt.Errorf("cannot run the suite: %w; see its output in %s", err, output.Name())
	}
	return nil
}

// clear removes the previous run's files and writes the plan.
func (s *session) clear() error {
	for _, name := range []string{reportFile, junitFile, outputFile, failureDir} {
		if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(s.plan, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, planFile), data, 0o644)
}

// argv returns the command line. ginkgo runs in a separate session, so that an interrupt from the terminal reaches it
// only once, through this process. It is also interrupted if this process is killed.
func (s *session) argv() ([]string, error) {
	argv := []string{
		"setsid", "setpriv", "--pdeathsig=INT", filepath.Join(s.cluster.Tools, "ginkgo"), "run",
		"--procs=" + strconv.Itoa(s.options.procs), "--timeout=6h", "--no-color", "--v",
		"--output-dir=" + s.dir, "--json-report=" + reportFile, "--junit-report=" + junitFile,
	}
	for _, name := range s.plan.Tests {
		argv = append(argv, "--focus= "+regexp.QuoteMeta(name)+"$")
	}
	argv = append(argv, filepath.Join(s.cluster.Tools, "e2e.test"), "--",
		"--num-nodes="+strconv.Itoa(s.options.nodes), // without it, tests that need two nodes skip themselves
		"--kubeconfig="+s.cluster.Kubeconfig(),
		"--kubectl-path="+s.cluster.KubectlPath(),
		"--provider=local",
		"--node-os-distro=debian",
	)
	switch {
	case s.machine != nil:
		argv = append(argv, "--allowed-not-ready-nodes="+strconv.Itoa(len(s.cluster.Nodes))) // the cordoned ones
	case s.options.nodes == 1:
		argv = append(argv, "--allowed-not-ready-nodes=1")
	}
	driver, err := s.options.driverArgs(s.dir)
	return append(argv, driver...), err
}
