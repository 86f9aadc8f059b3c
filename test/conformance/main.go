// Command conformance runs upstream's end-to-end suite against our kubelet and proxy on the lab cluster: `make conformance`.
//
//	lab cluster, suite, images (built here) -> selection of tests -> ginkgo -> report -> table, logs, docs/figures/conformance.md
//
// The environment selects the tests, see usage. The exit code is 1 if a test failed.
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
  PROCS       tests that run in parallel, 1 to 64 (8; 2 with VM)
  NODES       number of schedulable nodes, 1 to 3 (2); three are in three zones
  SERIAL      1: only the Serial tests, one after another
  ALL         1: also tests that are not [Conformance]; needs a FOCUS
  WIDE        1: tests beyond [Conformance] of ` + wideSIGs + `
              that need no cloud, feature gate or driver, and no privileged pod unless RUNTIME=runc-privileged
  SUBSET      1: a selection that takes a few minutes
  VM          1: on the virtual machine of make test-vm, which runs it: tests that need privileged pods, and a part of sig-node
  NETWORK_MODE  --network-mode of kubelets and proxies: host-gateway (default), overlay, cni
  POD_INTERFACES  engine: pods are on a Docker network; default: kubelets make the pods' interfaces
  DUAL_STACK  1: a cluster whose nodes, pods and Services have addresses of both families
  PROXY_MODE  --proxy-mode of proxies: userspace (default), connect, auto
  PROXY_LACKS  what the host keeps from proxies of PROXY_MODE=auto, so that they relay: cgroup2, bpffs, rights
  ENGINE      engine of the nodes: 25, 28, 29, 29-overlay2, 29-nftables; default: Debian's
  RUNTIME     default runtime of the engines: crun, or runc-privileged, with which privileged containers start on a machine that lacks
              CAP_SYS_RESOURCE, on one node; default: runc
  STORAGE     csi: the tests of provisioned volumes, on a cluster with a CSI driver and upstream's sidecars
  CONTROL_PLANE  1.33, 1.37: an older or newer control plane under the same nodes and suite; default: the suite's version
  ENGINE_API  API that the engine speaks: 1.24 or 1.41 at most, min1.44 at least; default: the engine's own
`

const defaultSIGs = "sig-node,sig-storage,sig-network,sig-apps,sig-cli,sig-auth,sig-scheduling,sig-instrumentation"

// options say what to run.
type options struct {
	sigs        []string
	focus, skip *regexp.Regexp // nil: no restriction
	procs       int
	nodes       int
	serial      bool
	all         bool
	wide        bool
	subset      bool
	vm          bool   // on the virtual machine instead of the nodes
	dual        bool   // addresses of both families
	network     string // --network-mode; "": host-gateway
	interfaces  string // --pod-interfaces; "": the default, the kubelet's except with CNI
	proxy       string // --proxy-mode of proxies; "": the default
	lacks       string // what the host keeps from proxies, see lab.CheckProxyLacks; "": nothing
	storage     string // what provisions volumes, see lab.CheckStorage; "": nothing
	release     string // engine of the nodes, see lab.Releases; "": Debian's
	control     string // version of the control plane, see lab.CheckControlPlane; "": the suite's
	runtime     string // of the engines, see lab.CheckRuntime; "": runc
	engine      string // API version of the kubelet's engine; "": unchanged
}

// parse parses options from environment variables.
func parse(getenv func(string) string) (options, error) {
	o := options{procs: 8, nodes: 2}
	o.sigs = strings.FieldsFunc(groups(getenv), func(r rune) bool { return r == ',' || r == ' ' })
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
	}{{"PROCS", &o.procs, 1, 64}, {"NODES", &o.nodes, 1, 3}} {
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
	for name, to := range map[string]*bool{"SERIAL": &o.serial, "ALL": &o.all, "WIDE": &o.wide, "SUBSET": &o.subset, "DUAL_STACK": &o.dual, "VM": &o.vm} {
		switch value := getenv(name); value {
		case "", "0":
		case "1":
			*to = true
		default:
			return o, fmt.Errorf("%s: got %q, want 1 or nothing", name, value)
		}
	}
	if o.vm {
		o.nodes = 1
		if getenv("PROCS") == "" {
			o.procs = 2
		}
	}
	if o.engine = getenv("ENGINE_API"); o.engine != "" && !slices.Contains(lab.EngineAPIs, o.engine) {
		return o, fmt.Errorf("ENGINE_API: got %q, want one of %s, or nothing", o.engine, strings.Join(lab.EngineAPIs, ", "))
	}
	o.release = getenv("ENGINE")
	if err := lab.CheckRelease(o.release); err != nil {
		return o, err
	}
	if o.release != "" && o.engine != "" {
		return o, errors.New("ENGINE cannot be combined with ENGINE_API, which imitates versions on Debian's engine: leave one out")
	}
	o.runtime = getenv("RUNTIME")
	if err := lab.CheckRuntime(o.runtime, o.release); err != nil {
		return o, err
	}
	if o.runtime == lab.RuncPrivileged {
		if number := getenv("NODES"); number != "" && number != "1" {
			return o, fmt.Errorf("NODES: got %q, want 1 or nothing with RUNTIME=%s: only the first node has what such tests need", number, o.runtime)
		}
		o.nodes = 1
	}
	if o.runtime != "" && o.engine != "" {
		return o, errors.New("RUNTIME cannot be combined with ENGINE_API, whose results are recorded for runc: leave one out")
	}
	o.control = getenv("CONTROL_PLANE")
	if err := lab.CheckControlPlane(o.control); err != nil {
		return o, err
	}
	o.storage = getenv("STORAGE")
	if err := lab.CheckStorage(o.storage); err != nil {
		return o, err
	}
	if err := o.parseProxy(getenv); err != nil {
		return o, err
	}
	return o, o.combinable()
}

// groups returns the groups of tests, those of SIGS or of the selection.
func groups(getenv func(string) string) string {
	switch {
	case getenv("SIGS") != "":
		return getenv("SIGS")
	case getenv("STORAGE") != "":
		return storageSIGs
	case getenv("VM") == "1":
		return vmSIGs
	case getenv("WIDE") == "1":
		return wideSIGs
	}
	return defaultSIGs
}

// parseProxy parses the settings of network and proxies.
func (o *options) parseProxy(getenv func(string) string) error {
	if o.network = getenv("NETWORK_MODE"); o.network == "host-gateway" {
		o.network = ""
	}
	if o.interfaces = getenv("POD_INTERFACES"); o.interfaces == "kubelet" {
		o.interfaces = ""
	}
	if o.proxy = getenv("PROXY_MODE"); o.proxy == "userspace" {
		o.proxy = ""
	}
	o.lacks = getenv("PROXY_LACKS")
	return lab.CheckProxyLacks(o.lacks, o.proxy)
}

// combinable reports selections that exclude each other.
func (o *options) combinable() error {
	if o.control != "" && o.engine != "" {
		return errors.New("CONTROL_PLANE cannot be combined with ENGINE_API, whose results are recorded for one control plane: leave one out")
	}
	if o.storage != "" && (o.all || o.wide || o.subset) {
		return errors.New("STORAGE cannot be combined with ALL, WIDE or SUBSET, because it selects its own tests: leave them out")
	}
	if o.vm && (o.all || o.subset || o.wide || o.storage != "" || o.serial) {
		return errors.New("VM=1 cannot be combined with ALL, SERIAL, STORAGE, SUBSET or WIDE, because it selects its own tests: leave them out")
	}
	if o.wide && (o.all || o.subset) {
		return errors.New("WIDE=1 cannot be combined with ALL or SUBSET: leave them out")
	}
	if o.all && o.focus == nil {
		return errors.New("ALL=1 needs a FOCUS: the whole suite has more than 7000 tests, most for other systems")
	}
	return nil
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
	all := filepath.Join(root, "_output/conformance")
	dir := filepath.Join(all, os.Getenv("WINKUBE_CLUSTER")) // two clusters may run the suite at a time
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
	rec, err := loadRecord(all)
	if err != nil {
		return r.failed(), err
	}
	rec.add(r)
	if err := rec.save(all); err != nil {
		return r.failed(), err
	}
	if updateDocs {
		if err := writeDocs(filepath.Join(root, "docs/figures/conformance.md"), rec, os.Stdout); err != nil {
			return r.failed(), err
		}
	}
	return r.failed(), nil
}

// runSuite starts the cluster and runs the selected tests. Failed tests are not an error.
func runSuite(ctx context.Context, root, dir string, o options) error {
	if o.nodes == 3 {
		if err := os.Setenv(lab.NodesVariable, "3"); err != nil {
			return err
		}
	}
	cluster := lab.New(root, os.Stdout)
	cluster.EngineAPI, cluster.Engine = o.engine, o.release
	if cluster.ControlPlane != o.control {
		return fmt.Errorf("the cluster runs with CONTROL_PLANE=%s, which changes the results of tests: set it, or run make down first", cluster.ControlPlane)
	}
	if cluster.Storage != o.storage {
		return fmt.Errorf("the cluster runs with STORAGE=%s, which changes the results of tests: set it, or run make down first", cluster.Storage)
	}
	unlock, err := cluster.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	var m *lab.Machine
	if o.vm {
		m = cluster.NewMachine(filepath.Join(root, "_output/vm"))
	}
	var p plan
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"suite", cluster.BuildSuite},
		{"suite's images", func(ctx context.Context) error { return upImages(ctx, cluster, m, o.privileged()) }},
		{"cluster DNS", func(ctx context.Context) error { return upDNS(ctx, cluster) }},
		{"selection", func(ctx context.Context) (err error) {
			p, err = choose(ctx, cluster, dir, o)
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
	if o.vm {
		ready, err := onlyMachine(ctx, cluster, m)
		if err != nil {
			return err
		}
		defer ready()
	}
	if o.nodes == 1 && !o.vm {
		last := cluster.Nodes[len(cluster.Nodes)-1].Name
		if _, err := cluster.Kubectl(ctx, "cordon", last); err != nil {
			return err
		}
		defer func() { _, _ = cluster.Kubectl(context.WithoutCancel(ctx), "uncordon", last) }()
	}
	if o.nodes == 3 {
		defer func() { _ = zones(context.WithoutCancel(ctx), cluster, func(int) string { return "-" }) }()
		if err := zones(ctx, cluster, func(i int) string { return fmt.Sprintf("=zone%d", i+1) }); err != nil {
			return err
		}
	}
	s := &session{cluster: cluster, machine: m, dir: dir, plan: p, options: o, out: os.Stdout}
	return s.run(ctx)
}

// zones changes the zone label of every node: "=NAME" sets it, "-" removes it.
func zones(ctx context.Context, cluster *lab.Cluster, change func(i int) string) error {
	for i, node := range cluster.Nodes {
		if _, err := cluster.Kubectl(ctx, "label", "--overwrite", "node", node.Name, "topology.kubernetes.io/zone"+change(i)); err != nil {
			return err
		}
	}
	return nil
}

// commit returns the commit under test.
func commit(ctx context.Context, root string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty", "--abbrev=10").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// noSuchName returns NXDOMAIN for the search domain of the lab's hosts, which has no server. Otherwise a resolver would
// stop at that domain's failure instead of trying the rest of its search list.
const noSuchName = `
    lab.test:53 {
        template ANY ANY {
            rcode NXDOMAIN
        }
    }
`

// upDNS starts the cluster's DNS, which tests of services need, and waits until it is ready.
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
	if strings.Contains(out, "configmap/coredns configured") { // CoreDNS reads it only at its start
		if _, err := cluster.Kubectl(ctx, "-n", "kube-system", "rollout", "restart", "deployment/coredns"); err != nil {
			return err
		}
	}
	_, err = cluster.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=5m")
	return err
}
