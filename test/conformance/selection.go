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

// plan is what a run consists of.
type plan struct {
	Selection string   // in words
	Tests     []string // names of the tests to run
	Cannot    []left   // selected, but not for this machine
	Engine    string   // options.around: the engine that the kubelet saw, see lab.EngineAPIs; "": the engine's own API
	Commit    string   // of the repository
}

// left is a test that does not run.
type left struct{ Name, Reason, Proof string }

// subset are the tests for everyday use: one or two quick tests of each subject of a node.
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

// engineSubset are those of the subset's tests that show what depends on the engine's version: how commands end, streams, mounts, groups and
// capabilities, changes while a container runs, namespaces that containers share.
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
func choose(ctx context.Context, cluster *lab.Cluster, o options) (plan, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.Tools, "e2e.test"), "--list-tests")
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		return plan{}, fmt.Errorf("cannot list the suite's tests: %w: %s", err, errors.String())
	}
	limits, err := limitsHere()
	if err != nil {
		return plan{}, err
	}
	return pick(listed(string(out)), o, limits), nil
}

// listed reads the names of tests from the suite's list.
func listed(out string) []string {
	var names []string
	for line := range strings.Lines(out) {
		if name := strings.TrimSpace(line); strings.HasPrefix(name, "[sig-") {
			// The place of the test comes first, before a colon: .../pods.go:123: [sig-node] ...
			names = append(names, name)
			continue
		}
		if _, name, ok := strings.Cut(line, ": [sig-"); ok {
			names = append(names, "[sig-"+strings.TrimSpace(name))
		}
	}
	return names
}

// pick is the selection from names.
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
		(o.all || o.wide && !leftOut(name) || !o.wide && strings.Contains(name, "[Conformance]")) &&
		strings.Contains(name, "[Serial]") == o.serial &&
		(o.focus == nil || o.focus.MatchString(name)) &&
		(o.skip == nil || !o.skip.MatchString(name)) &&
		(!o.subset || o.engine == "" && subset.MatchString(name) || o.engine != "" && engineSubset.MatchString(name))
}

// describe says in words what is selected.
func (o options) describe() string {
	words := []string{"conformance tests of " + strings.Join(o.sigs, ", ")}
	if o.all {
		words[0] = "all tests of " + strings.Join(o.sigs, ", ")
	}
	if o.wide {
		words[0] = "tests beyond Conformance of " + strings.Join(o.sigs, ", ")
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
	if o.network != "" {
		words = append(words, networkMark+o.network)
	}
	if o.engine != "" {
		words = append(words, "ENGINE_API="+o.engine)
	}
	return fmt.Sprintf("%s; %d processes, %d nodes", strings.Join(words, ", "), o.procs, o.nodes)
}

// networkMark is the prefix of a network mode where an engine may be named.
const networkMark = "NETWORK_MODE="

// around is what is unusual about the kubelets' environment: the engine's API or else the network mode. Results are kept separately for each.
func (o options) around() string {
	if o.engine == "" && o.network != "" {
		return networkMark + o.network
	}
	return o.engine
}

// sigOf is the group to which a test belongs: sig-node.
func sigOf(name string) string {
	group, _, ok := strings.Cut(strings.TrimPrefix(name, "["), "]")
	if !ok || !strings.HasPrefix(name, "[sig-") {
		return "none"
	}
	return group
}
