package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// limit is a reason why some machines cannot run certain tests.
type limit struct {
	name   *regexp.Regexp
	reason string
	proof  string // how to verify the reason; the same on every machine
	holds  func(machine) bool
}

// machine holds the properties that limits depend on, of the machine and of the run.
type machine struct {
	sysResource bool // CAP_SYS_RESOURCE is available
	privileged  bool // privileged containers start; see RUNTIME
	hostMounts  bool // privileged containers may enter the mount namespace of the host's first process
	relayed     bool // the proxy connects to endpoints, so they see its address; see PROXY_MODE
	dummies     bool // the kernel has dummy interfaces
	sctpPorts   bool // hostPorts of SCTP work: the kernel has its sockets, or rules of the kubelet serve; see POD_INTERFACES
}

// limits lists all tests that are not run, each with its reason. Tests that fail because of our bugs do not belong
// here.
var limits = []limit{
	{
		name: regexp.MustCompile(`\[sig-apps\] Job should allow to use (the pod failure policy on exit code to fail the job early|` +
			`a pod failure policy to ignore failure matching on (DisruptionTarget condition|exit code))`),
		reason: "its pods are privileged because they keep a file on the host, and this machine cannot grant CAP_SYS_RESOURCE; RUNTIME=runc-privileged runs them without it",
		proof: "test/e2e/framework/job/fixtures.go of the suite: SecurityContext.Privileged = &privileged; the pods' event: unable to apply caps: " +
			"operation not permitted; bit 24 of CapBnd in /proc/self/status is 0",
		holds: func(m machine) bool { return !m.privileged },
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
		reason: "a privileged pod creates the directory on the host, and this machine cannot grant CAP_SYS_RESOURCE; RUNTIME=runc-privileged runs them without it",
		proof:  "test/e2e/storage/drivers/in_tree.go of the suite: the hostPath driver's init pod; its event: unable to apply caps; bit 24 of CapBnd in /proc/self/status is 0",
		holds:  func(m machine) bool { return !m.privileged },
	},
	{
		name:   regexp.MustCompile(`(\[sig-storage\] In-tree Volumes|External Storage) .*\] subPath `),
		reason: "the containers of its pods are privileged, and this machine cannot grant CAP_SYS_RESOURCE; RUNTIME=runc-privileged runs them without it",
		proof: "test/e2e/storage/testsuites/subpath.go of the suite: SubpathTestPod(..., admissionapi.LevelPrivileged); the pods' state " +
			"ContainerCannotRun: unable to apply caps; bit 24 of CapBnd in /proc/self/status is 0",
		holds: func(m machine) bool { return !m.privileged },
	},
	{
		name:   regexp.MustCompile(`External Storage .*(volumes should store data|provisioning should provision storage with (snapshot|pvc) data source|concurrently access the volume and (its clone|restored snapshot))`),
		reason: "a privileged pod writes the data, and this machine cannot grant CAP_SYS_RESOURCE; RUNTIME=runc-privileged runs them without it",
		proof: "InjectContent of test/e2e/framework/volume/fixtures.go of the suite; the pods' Event: " +
			"unable to apply caps; bit 24 of CapBnd in /proc/self/status is 0. TestProvisioning restores a snapshot",
		holds: func(m machine) bool { return !m.privileged },
	},
	{
		name:   regexp.MustCompile(`External Storage .*should provision correct filesystem size when restoring`),
		reason: "the tests' driver has directories for volumes, which have the size of the host's file system",
		proof:  "test/csidriver; the test's failure: Restored fs size is not larger than origin fs size",
		holds:  func(machine) bool { return true },
	},
	{
		name:   regexp.MustCompile(`External Storage .*provisioning should provision storage with any volume data source`),
		reason: "the image of a volume populator must come from a registry",
		proof:  "test/e2e/storage/testsuites/provisioning.go of the suite: hello-populator-deploy.yaml; its pod waits with ImagePullBackOff",
		holds:  func(machine) bool { return true },
	},
	{
		name: regexp.MustCompile(`\[sig-node\] .*(run the container as privileged when true|PrivilegedPod)|` +
			`\[sig-storage\] HostPath should support (r/w|subPath)|\[sig-storage\] In-tree Volumes .*volumes should store data|` +
			`\[sig-apps\] Job (containers restarted by container restart policy|should run a job to completion when tasks sometimes fail and are not locally)`),
		reason: "a privileged container needs all capabilities, and this machine cannot grant CAP_SYS_RESOURCE; RUNTIME=runc-privileged runs them without it",
		proof:  "bit 24 of CapBnd in /proc/self/status is 0; docker run --privileged: unable to apply caps",
		holds:  func(m machine) bool { return !m.privileged },
	},
	{
		name:   regexp.MustCompile(`\[sig-node\] PrivilegedPod`),
		reason: "its pod makes a dummy interface, and this kernel has none",
		proof:  "unshare -n ip link add winkube0 type dummy: Operation not supported; make test-vm runs it",
		holds:  func(m machine) bool { return !m.dummies },
	},
	{
		name: regexp.MustCompile(`\[sig-node\] Mount propagation|\[sig-storage\] PersistentVolumes-expansion loopback|` +
			`External Storage .*volumeMode should not mount / map unused volumes`),
		reason: "its pod enters the mount namespace of the host's first process, which this machine forbids",
		proof:  "test/e2e/storage/utils/host_exec.go of the suite; nsenter --mount=/proc/1/ns/mnt true: Permission denied; make test-vm runs the first two",
		holds:  func(m machine) bool { return !m.hostMounts },
	},
	{
		name:   regexp.MustCompile(`\[sig-network\] Services should preserve source pod IP for traffic thru service cluster IP`),
		reason: "the default proxy mode, userspace, connects to endpoints itself, so they see the node's address; PROXY_MODE=connect runs the test",
		proof:  "make conformance WIDE=1 SIGS=sig-network FOCUS='preserve source pod IP' PROXY_MODE=connect passes; docs/figures/service-proxy.md",
		holds:  func(m machine) bool { return m.relayed },
	},
	{
		name:   regexp.MustCompile(`\[sig-node\] Container Runtime blackbox test when running a container with a new image \[Serial\] should be able to pull image \[`),
		reason: "it pulls the suite's own image again, and no registry has it: the images are built here and loaded into the engines",
		proof:  "its pod waits with ImagePullBackOff, connection refused; e2e TestImages pulls with policy Always",
		holds:  func(machine) bool { return true },
	},
	{
		name:   regexp.MustCompile(`\[sig-node\] Container Runtime blackbox test when running a container with a new image \[Serial\] should be able to pull from private registry with secret`),
		reason: "the registry in agnhost serves an image that upstream's build of agnhost puts into /var/registry from the Internet; the one built here has none",
		proof:  "fakeregistryserver/prepare_registry.sh of agnhost; the pod's Event: 404 page not found; e2e TestImages pulls with secrets",
		holds:  func(machine) bool { return true },
	},
	{
		name:   regexp.MustCompile(`\[sig-network\] Networking should allow creating a Pod with an SCTP HostPort`),
		reason: "Docker listens at hostPorts itself, and this kernel has no sockets of SCTP; the interfaces of the kubelet, which are the default, run the test",
		proof:  "no SCTP in /proc/net/protocols; the pod's Event: Error starting userland proxy: protocol not supported",
		holds:  func(m machine) bool { return !m.sctpPorts },
	},
}

// limitsHere returns the limits that apply to this machine, or to the virtual one, with the options' proxies and interfaces of pods.
func limitsHere(o options) ([]limit, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	bounding, err := boundingSet(string(status))
	if err != nil {
		return nil, err
	}
	const capSysResource = 24
	_, hidden := os.Readlink("/proc/1/ns/mnt")
	protocols, err := os.ReadFile("/proc/net/protocols")
	if err != nil {
		return nil, err
	}
	m := machine{
		sysResource: o.vm || bounding>>capSysResource&1 == 1,
		privileged:  o.privileged() || bounding>>capSysResource&1 == 1,
		hostMounts:  o.vm || hidden == nil,
		dummies:     o.vm || exec.Command("unshare", "-n", "ip", "link", "add", "winkube0", "type", "dummy").Run() == nil,
		relayed:     o.relayed(),
		sctpPorts:   o.interfaces == "" && o.network != "cni" || strings.Contains(string(protocols), "\nSCTP "),
	}
	var here []limit
	for _, l := range limits {
		if l.holds(m) {
			here = append(here, l)
		}
	}
	return here, nil
}

// boundingSet returns the capability bounding set in /proc/PID/status.
func boundingSet(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, fmt.Errorf("cannot find CapBnd in /proc/self/status")
}
