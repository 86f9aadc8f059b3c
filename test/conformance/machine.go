package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/winkube/winkube/test/lab"
)

// vmSIGs are the groups with tests that need more of a machine than the cluster's hosts have.
const vmSIGs = "sig-node,sig-storage"

// ofVM matches what VM=1 runs beside the engine's subset: tests with privileged containers, host directories, OOM scores and journald.
var ofVM = regexp.MustCompile(strings.Join([]string{
	`PrivilegedPod`, `should run the container as privileged when true`, `Mount propagation`,
	`HostPath should`, `PersistentVolumes-expansion loopback`,
	`\[Driver: hostPath\] \[Testpattern: Inline-volume \(default fs\)\] ` + ofVolumes,
	`\[LocalVolumeType: dir\] \[Testpattern: Pre-provisioned PV \(default fs\)\] ` + ofVolumes,
	`PersistentVolumes-local \[Volume type: dir\] (One pod|Two pods)`,
	`NodeLogQuery\] should return the (kubelet logs$|kubelet logs for the current boot$|error)`, // the others need SSH
}, "|"))

// ofVolumes are a few tests of each driver: an emulated processor takes half a minute for one.
const ofVolumes = `(subPath should (be able to unmount after the subpath directory is deleted|support (existing directory|file as subpath|readOnly directory))|volumes should store data)`

// unfit matches tests that restart nodes or take long. ImageVolume is among them: an emulated processor needs more than the suite's five minutes for its
// image of 570 MB.
var unfit = regexp.MustCompile(`\[(Serial|Slow|Disruptive|Flaky)\]|ImageVolume`)

func ofMachine(name string) bool {
	return !unfit.MatchString(name) && (ofVM.MatchString(name) || sigOf(name) == "sig-node" && engineSubset.MatchString(name))
}

// onlyMachine keeps pods of tests off the cluster's nodes, so that they run on a machine, which must be a node. The returned function undoes it.
func onlyMachine(ctx context.Context, cluster *lab.Cluster, m *lab.Machine) (undo func(), err error) {
	if _, err := cluster.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=1m", "node/"+m.Name); err != nil {
		return nil, fmt.Errorf("VM=1 needs the virtual machine as a node, which make test-vm sets up: %w", err)
	}
	undo = func() {
		for _, node := range cluster.Nodes {
			_, _ = cluster.Kubectl(context.WithoutCancel(ctx), "uncordon", node.Name)
		}
	}
	for _, node := range cluster.Nodes {
		if _, err := cluster.Kubectl(ctx, "cordon", node.Name); err != nil {
			undo()
			return nil, err
		}
	}
	return undo, nil
}
