package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// limit is a reason why tests cannot run on some machines.
type limit struct {
	name   *regexp.Regexp
	reason string
	proof  string // how to check the reason, the same on every machine
	holds  func(machine) bool
}

// machine is what limits depend on.
type machine struct {
	sysResource bool // CAP_SYS_RESOURCE is available
}

// limits is the one table of tests that do not run, each with its reason. A test that fails because of our fault does not belong here.
var limits = []limit{
	{
		name: regexp.MustCompile(`\[sig-apps\] Job should allow to use (the pod failure policy on exit code to fail the job early|` +
			`a pod failure policy to ignore failure matching on (DisruptionTarget condition|exit code))`),
		reason: "its pods are privileged because they keep a file on the host, and this machine cannot grant CAP_SYS_RESOURCE",
		proof: "test/e2e/framework/job/fixtures.go of the suite: SecurityContext.Privileged = &privileged; the pods' event: unable to apply caps: " +
			"operation not permitted; bit 24 of CapBnd in /proc/self/status is 0",
		holds: func(m machine) bool { return !m.sysResource },
	},
	{
		name: regexp.MustCompile(`\[sig-node\] .*InPlace Resize.* guaranteed qos - 1 container with resize policy (\[Feature:InPlacePodVerticalScaling\] )?` +
			`(cpu restart resizing .*cpu|mem restart resizing .*mem|cpu & mem restart)`),
		reason: "after a restart it expects the OOM score -997 of guaranteed pods, and this machine cannot grant CAP_SYS_RESOURCE",
		proof: "test/e2e/common/node/framework/podresize/resize.go of the suite: verifyOomScoreAdj; bit 24 of CapBnd in /proc/self/status is 0; " +
			"docker run --oom-score-adj=-997: can't get final child's PID",
		holds: func(m machine) bool { return !m.sysResource },
	},
	{
		name:   regexp.MustCompile(`\[sig-storage\] In-tree Volumes \[Driver: hostPath\] .*(volumeIO|volumes) `),
		reason: "a privileged pod creates the directory on the host, and this machine cannot grant CAP_SYS_RESOURCE",
		proof:  "test/e2e/storage/drivers/in_tree.go of the suite: the hostPath driver's init pod; its event: unable to apply caps; bit 24 of CapBnd in /proc/self/status is 0",
		holds:  func(m machine) bool { return !m.sysResource },
	},
	{
		name:   regexp.MustCompile(`\[sig-storage\] In-tree Volumes .*\] subPath `),
		reason: "the containers of its pods are privileged, and this machine cannot grant CAP_SYS_RESOURCE",
		proof: "test/e2e/storage/testsuites/subpath.go of the suite: SubpathTestPod(..., admissionapi.LevelPrivileged); the pods' state " +
			"ContainerCannotRun: unable to apply caps; bit 24 of CapBnd in /proc/self/status is 0",
		holds: func(m machine) bool { return !m.sysResource },
	},
	{
		name: regexp.MustCompile(`\[sig-node\] .*(run the container as privileged when true|PrivilegedPod)|` +
			`\[sig-node\] Mount propagation|\[sig-storage\] HostPath should support (r/w|subPath)|` +
			`\[sig-storage\] PersistentVolumes-expansion loopback|\[sig-storage\] In-tree Volumes .*volumes should store data|` +
			`\[sig-apps\] Job (containers restarted by container restart policy|should run a job to completion when tasks sometimes fail and are not locally)`),
		reason: "a privileged container needs all capabilities, and this machine cannot grant CAP_SYS_RESOURCE",
		proof:  "bit 24 of CapBnd in /proc/self/status is 0; docker run --privileged: unable to apply caps",
		holds:  func(m machine) bool { return !m.sysResource },
	},
}

// limitsHere are the limits that hold on this machine.
func limitsHere() ([]limit, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	bounding, err := boundingSet(string(status))
	if err != nil {
		return nil, err
	}
	const capSysResource = 24
	m := machine{sysResource: bounding>>capSysResource&1 == 1}
	var here []limit
	for _, l := range limits {
		if l.holds(m) {
			here = append(here, l)
		}
	}
	return here, nil
}

// boundingSet reads the capabilities that a process and its children can have at most.
func boundingSet(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, fmt.Errorf("cannot find CapBnd in /proc/self/status")
}
