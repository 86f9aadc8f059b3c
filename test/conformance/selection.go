package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/winkube/winkube/test/lab"
)

// plan describes a run.
type plan struct {
	Selection string   // in words
	Tests     []string // names of the tests to run
	Cannot    []left   // selected, but not supported on this machine
	Engine    string   // options.around: the engine that the kubelet saw, see lab.EngineAPIs; "": the engine's own API
	Commit    string   // of the repository
}

// left is a test that is not run.
type left struct{ Name, Reason, Proof string }

// subset matches the tests for everyday use: one or two quick tests per area of a node.
var subset = regexp.MustCompile(strings.Join([]string{
	`Probing container should be restarted with a (exec "cat /tmp/health"|/healthz http|GRPC)`,
	`Container Lifecycle Hook when create a pod with lifecycle hook should execute (poststart|prestop) (exec|http) hook`,
	`Container Runtime blackbox test (on terminated container should report termination message (from file|as empty|from log)|when starting a container)`,
	`InitContainer \[NodeConformance\] should`,
	`Downward API should provide`,
	`Variable Expansion should (allow composing env|allow substituting values in a volume subpath)`,
	`Secrets should be consumable (from pods in env|via the environment)`,
	`ConfigMap should be consumable`,
	`Security Context ([Ww]hen|should)`, `resize pod via the replace endpoint`, `ImageVolume`,
	`Kubelet when scheduling`,
	`KubeletManagedEtcHosts`,
	`Pods should (be submitted and removed|support remote command|support retrieving logs|be updated|contain environment|get a host IP)`,
	`Ephemeral Containers`, `RuntimeClass should`, `Sysctls`, `Containers should`, `PreStop should`, `Lease`,
	`EmptyDir volumes (should support \(root,0644|should support \(non-root,0777|pod should share)`, `EmptyDir wrapper`,
	`ConfigMap (optional updates|updates should|should be consumable from pods in volume as non-root)`,
	`Secrets (optional updates|should be consumable from pods in volume with mappings)`,
	`Projected (downwardAPI should|configMap updates|secret optional|combined)`,
	`Subpath Atomic writer volumes should support subpaths with (configmap|downward|projected) pod`,
	`Services should (serve a basic|be able to change the type from ClusterIP|have session affinity work for NodePort|provide secure)`,
	`DNS should provide (/etc/hosts|DNS for the cluster|DNS for services)`,
	`HostPort`, `Networking Granular Checks: Pods`,
	`Deployment RollingUpdateDeployment`, `Job should run a job to completion`, `ReplicaSet should serve`, `StatefulSet .* should perform rolling updates`,
	`Kubectl client Kubectl (logs|run pod|expose|api-versions)`, `Update Demo should scale`,
	`ServiceAccounts should (mount an API token|mount projected|guarantee)`,
}, "|"))

// engineSubset matches those tests of the subset that depend on the engine's version: exit of commands, streams,
// mounts, groups and capabilities, changes to running containers, shared namespaces.
var engineSubset = regexp.MustCompile(strings.Join([]string{
	`Probing container should be restarted with a exec "cat /tmp/health"`,
	`Container Lifecycle Hook when create a pod with lifecycle hook should execute (poststart|prestop) exec hook`,
	`Container Runtime blackbox test on terminated container should report termination message from log`,
	`Pods should (support remote command|support retrieving logs)`,
	`Security Context should (support pod.Spec.SecurityContext.RunAsUser And|support seccomp)`, `Security Context When creating a pod with readOnlyRootFilesystem`,
	`Ephemeral Containers`, `Sysctls .* should support sysctls`, `ImageVolume`,
	`EmptyDir volumes (should support \(non-root,0777|pod should share)`,
	`Subpath Atomic writer volumes should support subpaths with downward pod`,
	`Kubectl client Kubectl run pod`,
}, "|"))

// choose lists the suite's tests and selects from them.
func choose(ctx context.Context, cluster *lab.Cluster, dir string, o options) (plan, error) {
	driver, err := o.driverArgs(dir)
	if err != nil {
		return plan{}, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.Tools, "e2e.test"), append(driver, "--list-tests")...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		return plan{}, fmt.Errorf("cannot list the suite's tests: %w: %s", err, errors.String())
	}
	limits, err := limitsHere(o)
	if err != nil {
		return plan{}, err
	}
	return pick(listed(string(out)), o, limits), nil
}

// listed parses the test names in the suite's list.
func listed(out string) []string {
	var names []string
	for line := range strings.Lines(out) {
		if name := strings.TrimSpace(line); strings.HasPrefix(name, "[sig-") {
			// A line starts with the test's location and a colon: .../pods.go:123: [sig-node] ...
			names = append(names, name)
			continue
		}
		for _, prefix := range []string{"[sig-", externalPrefix} {
			if _, name, ok := strings.Cut(line, ": "+prefix); ok {
				names = append(names, prefix+strings.TrimSpace(name))
				break
			}
		}
	}
	return names
}

// pick selects tests from names.
func pick(names []string, o options, limits []limit) plan {
	p := plan{Selection: o.describe()}
	for _, name := range names {
		if !o.matches(name) {
			continue
		}
		if i := slices.IndexFunc(limits, func(l limit) bool { return l.name.MatchString(name) }); i >= 0 {
			p.Cannot = append(p.Cannot, left{name, limits[i].reason, limits[i].proof})
			continue
		}
		p.Tests = append(p.Tests, name)
	}
	return p
}

func (o options) matches(name string) bool {
	return slices.Contains(o.sigs, sigOf(name)) &&
		o.includes(name) &&
		strings.Contains(name, "[Serial]") == o.serial &&
		(o.focus == nil || o.focus.MatchString(name)) &&
		(o.skip == nil || !o.skip.MatchString(name)) &&
		(!o.subset || o.engine == "" && subset.MatchString(name) || o.engine != "" && engineSubset.MatchString(name))
}

// includes reports whether a test is of the selected kind.
func (o options) includes(name string) bool {
	switch {
	case o.storage != "":
		return ofStorage.MatchString(name)
	case o.vm:
		return ofMachine(name)
	case o.wide:
		return !leftOut(name, o)
	}
	return o.all || strings.Contains(name, "[Conformance]")
}

// describe describes the selection.
func (o options) describe() string {
	words := []string{"conformance tests of " + strings.Join(o.sigs, ", ")}
	if o.all {
		words[0] = "all tests of " + strings.Join(o.sigs, ", ")
	}
	if o.wide {
		words[0] = "tests beyond Conformance of " + strings.Join(o.sigs, ", ")
	}
	if o.storage != "" {
		words[0] = "tests of provisioned volumes of " + strings.Join(o.sigs, ", ")
	}
	if o.vm {
		words[0] = "tests for a virtual machine of " + strings.Join(o.sigs, ", ")
	}
	if o.subset {
		words = append(words, "the subset for everyday")
	}
	if o.serial {
		words = append(words, "Serial")
	} else {
		words = append(words, "not Serial")
	}
	if o.focus != nil {
		words = append(words, "FOCUS="+o.focus.String())
	}
	if o.skip != nil {
		words = append(words, "SKIP="+o.skip.String())
	}
	if o.control != "" {
		words = append(words, controlMark+o.control)
	}
	if o.network != "" {
		words = append(words, networkMark+o.network)
	}
	if o.interfaces != "" {
		words = append(words, interfacesMark+o.interfaces)
	}
	if o.proxy != "" {
		words = append(words, proxyMark+o.proxy)
	}
	if o.lacks != "" {
		words = append(words, lacksMark+o.lacks)
	}
	if o.storage != "" {
		words = append(words, storageMark+o.storage)
	}
	if o.dual {
		words = append(words, dualMark+"1")
	}
	if o.vm {
		words = append(words, machineMark+"1")
	}
	if o.release != "" {
		words = append(words, releaseMark+o.release)
	}
	if o.runtime != "" {
		words = append(words, runtimeMark+o.runtime)
	}
	if o.engine != "" {
		words = append(words, "ENGINE_API="+o.engine)
	}
	return fmt.Sprintf("%s; %d processes, %d nodes", strings.Join(words, ", "), o.procs, o.nodes)
}

// Marks of what differs from the usual cluster, in place of an engine API.
const (
	networkMark, proxyMark, lacksMark  = "NETWORK_MODE=", "PROXY_MODE=", "PROXY_LACKS="
	releaseMark                        = "ENGINE="
	runtimeMark, dualMark, controlMark = "RUNTIME=", "DUAL_STACK=", "CONTROL_PLANE="
	machineMark, interfacesMark        = "VM=", "POD_INTERFACES="
)

// privileged tells whether hosts start privileged containers.
func (o options) privileged() bool { return o.vm || o.runtime == lab.RuncPrivileged }

// relayed tells whether proxies connect to endpoints for the clients on their host.
func (o options) relayed() bool { return o.proxy == "" || o.lacks != "" }

// around describes the nodes' environment if it is not the default: the engine's API, otherwise its release, the runtime, the
// network mode, the proxy mode and the families. Results are recorded separately for each.
func (o options) around() string {
	if o.engine != "" {
		return o.engine
	}
	var words []string
	if o.release != "" {
		words = append(words, releaseMark+o.release)
	}
	if o.runtime != "" {
		words = append(words, runtimeMark+o.runtime)
	}
	if o.control != "" {
		words = append(words, controlMark+o.control)
	}
	if o.network != "" {
		words = append(words, networkMark+o.network)
	}
	if o.interfaces != "" {
		words = append(words, interfacesMark+o.interfaces)
	}
	if o.proxy != "" {
		words = append(words, proxyMark+o.proxy)
	}
	if o.lacks != "" {
		words = append(words, lacksMark+o.lacks)
	}
	if o.storage != "" {
		words = append(words, storageMark+o.storage)
	}
	if o.dual {
		words = append(words, dualMark+"1")
	}
	if o.vm {
		words = append(words, machineMark+"1")
	}
	return strings.Join(words, " ")
}

// sigOf returns the group of a test: sig-node.
func sigOf(name string) string {
	if strings.HasPrefix(name, externalPrefix) {
		return "sig-storage"
	}
	group, _, ok := strings.Cut(strings.TrimPrefix(name, "["), "]")
	if !ok || !strings.HasPrefix(name, "[sig-") {
		return "none"
	}
	return group
}
