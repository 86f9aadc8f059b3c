// Command conformance runs upstream's end-to-end suite against our kubelet and proxy on the lab cluster: `make conformance`.
//
//	lab cluster, suite, images (built here) -> selection of tests -> ginkgo -> report -> table, logs, docs/figures/conformance.md
//
// What to run comes from the environment, see usage. The exit code is 1 when a test failed.
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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/winkube/winkube/test/lab"
)

const usage = `conformance [-report] [-update-docs]

From the environment:
  SIGS        groups of tests, separated by commas (` + defaultSIGs + `)
  FOCUS       regular expression that a test's name must match
  SKIP        regular expression that a test's name must not match
  PROCS       tests that run in parallel, 1 to 64 (8)
  NODES       number of schedulable nodes, 1 or 2 (2)
  SERIAL      1: only the Serial tests, one after another
  ALL         1: also tests that are not [Conformance]; needs a FOCUS
  WIDE        1: tests beyond [Conformance] of ` + wideSIGs + `
              that need no cloud, feature gate, driver or privileged pod
  SUBSET      1: a selection that takes a few minutes
  NETWORK_MODE  --network-mode of kubelets and proxies: host-gateway (default), overlay, cni
  ENGINE_API  API that the engine speaks: 1.24 or 1.41 at most, min1.44 at least; default: the engine's own
`

const defaultSIGs = "sig-node,sig-storage,sig-network,sig-apps,sig-cli,sig-auth,sig-scheduling,sig-instrumentation"

// options say what to run.
type options struct {
	sigs        []string
	focus, skip *regexp.Regexp // nil: no such limit
	procs       int
	nodes       int
	serial      bool
	all         bool
	wide        bool
	subset      bool
	network     string // --network-mode; "": host-gateway
	engine      string // API that the kubelet's engine speaks; "": its own
}

// parse reads options from an environment.
func parse(getenv func(string) string) (options, error) {
	o := options{procs: 8, nodes: 2}
	sigs := getenv("SIGS")
	switch {
	case sigs != "":
	case getenv("WIDE") == "1":
		sigs = wideSIGs
	default:
		sigs = defaultSIGs
	}
	o.sigs = strings.FieldsFunc(sigs, func(r rune) bool { return r == ',' || r == ' ' })
	for name, to := range map[string]**regexp.Regexp{"FOCUS": &o.focus, "SKIP": &o.skip} {
		if value := getenv(name); value != "" {
			pattern, err := regexp.Compile(value)
			if err != nil {
				return o, fmt.Errorf("%s: %q is not a regular expression: %w", name, value, err)
			}
			*to = pattern
		}
	}
	for _, number := range []struct {
		name     string
		to       *int
		min, max int
	}{{"PROCS", &o.procs, 1, 64}, {"NODES", &o.nodes, 1, 2}} {
		value := getenv(number.name)
		if value == "" {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < number.min || n > number.max {
			return o, fmt.Errorf("%s: got %q, want a number from %d to %d", number.name, value, number.min, number.max)
		}
		*number.to = n
	}
	for name, to := range map[string]*bool{"SERIAL": &o.serial, "ALL": &o.all, "WIDE": &o.wide, "SUBSET": &o.subset} {
		switch value := getenv(name); value {
		case "", "0":
		case "1":
			*to = true
		default:
			return o, fmt.Errorf("%s: got %q, want 1 or nothing", name, value)
		}
	}
	if o.engine = getenv("ENGINE_API"); o.engine != "" && !slices.Contains(lab.EngineAPIs, o.engine) {
		return o, fmt.Errorf("ENGINE_API: got %q, want one of %s, or nothing", o.engine, strings.Join(lab.EngineAPIs, ", "))
	}
	if o.network = getenv("NETWORK_MODE"); o.network == "host-gateway" {
		o.network = ""
	}
	if o.wide && (o.all || o.serial || o.subset) {
		return o, errors.New("WIDE=1 cannot be combined with ALL, SERIAL or SUBSET: leave them out")
	}
	if o.all && o.focus == nil {
		return o, errors.New("ALL=1 needs a FOCUS: the whole suite has more than 7000 tests, most for other systems")
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report := flag.Bool("report", false, "print the report of the last run without running tests")
	updateDocs := flag.Bool("update-docs", false, "write docs/figures/conformance.md from all runs so far")
	serve := flag.String("serve-images", "", "serve the images in this directory on a node; for internal use")
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	if *serve != "" {
		fmt.Fprintln(os.Stderr, "conformance: registry:", serveRegistry(*serve))
		stop()
		os.Exit(1)
	}
	failed, err := run(ctx, *report, *updateDocs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
	}
	if failed || err != nil {
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, reportOnly, updateDocs bool) (failed bool, err error) {
	root, err := lab.FindRoot()
	if err != nil {
		return false, err
	}
	dir := filepath.Join(root, "_output/conformance")
	if !reportOnly {
		o, err := parse(os.Getenv)
		if err != nil {
			return false, err
		}
		if err := runSuite(ctx, root, dir, o); err != nil {
			return false, err
		}
	}
	r, err := loadReport(dir)
	if err != nil {
		return false, err
	}
	r.print(os.Stdout)
	rec, err := loadRecord(dir)
	if err != nil {
		return r.failed(), err
	}
	rec.add(r)
	if err := rec.save(dir); err != nil {
		return r.failed(), err
	}
	if updateDocs {
		if err := writeDocs(filepath.Join(root, "docs/figures/conformance.md"), rec, os.Stdout); err != nil {
			return r.failed(), err
		}
	}
	return r.failed(), nil
}

// runSuite starts everything and runs the selected tests. Failed tests are not an error.
func runSuite(ctx context.Context, root, dir string, o options) error {
	cluster := lab.New(root, os.Stdout)
	cluster.EngineAPI = o.engine
	unlock, err := cluster.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	var p plan
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"suite", cluster.BuildSuite},
		{"suite's images", func(ctx context.Context) error { return upImages(ctx, cluster) }},
		{"cluster DNS", func(ctx context.Context) error { return upDNS(ctx, cluster) }},
		{"selection", func(ctx context.Context) (err error) {
			p, err = choose(ctx, cluster, o)
			return err
		}},
	} {
		if err := cluster.Step(ctx, step.name, step.do); err != nil {
			return err
		}
	}
	p.Engine, p.Commit = o.around(), commit(ctx, root)
	if len(p.Tests) == 0 {
		return errors.New("no test matches SIGS, FOCUS and SKIP: widen them; go run ./test/conformance -help lists the variables")
	}
	if o.nodes == 1 {
		last := cluster.Nodes[len(cluster.Nodes)-1].Name
		if _, err := cluster.Kubectl(ctx, "cordon", last); err != nil {
			return err
		}
		defer func() { _, _ = cluster.Kubectl(context.WithoutCancel(ctx), "uncordon", last) }()
	}
	s := &session{cluster: cluster, dir: dir, plan: p, options: o, out: os.Stdout}
	return s.run(ctx)
}

// commit returns the tested commit.
func commit(ctx context.Context, root string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty", "--abbrev=10").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// noSuchName answers for the search domain of the lab's hosts, for which there is no server: without it a program that walks its search
// list ends at the failure of that one, as it would not where names are resolved.
const noSuchName = `
    lab.test:53 {
        template ANY ANY {
            rcode NXDOMAIN
        }
    }
`

// upDNS starts the cluster's DNS, which tests of services use, and waits for it.
func upDNS(ctx context.Context, cluster *lab.Cluster) error {
	manifest, err := os.ReadFile(filepath.Join(cluster.Root, "build/samples/coredns.yaml"))
	if err != nil {
		return err
	}
	const end = "        loadbalance\n    }\n"
	text := strings.Replace(string(manifest), end, end+strings.TrimPrefix(noSuchName, "\n"), 1)
	if text == string(manifest) {
		return errors.New("build/samples/coredns.yaml: cannot find the end of the Corefile's server block")
	}
	path := filepath.Join(cluster.State, "conformance-dns.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	out, err := cluster.Kubectl(ctx, "apply", "-f", path)
	if err != nil {
		return err
	}
	if strings.Contains(out, "configmap/coredns configured") { // CoreDNS reads it once
		if _, err := cluster.Kubectl(ctx, "-n", "kube-system", "rollout", "restart", "deployment/coredns"); err != nil {
			return err
		}
	}
	_, err = cluster.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=90s")
	return err
}
