package main

import (
	"regexp"
	"slices"
)

// wideSIGs are the groups whose tests outside Conformance depend on the node.
const wideSIGs = "sig-node,sig-network,sig-apps,sig-storage,sig-instrumentation"

// class is a kind of upstream tests that WIDE omits because of their requirements.
type class struct {
	name   *regexp.Regexp
	reason string
	dual   bool // a cluster with addresses of both families runs them
	// privileged: hosts that start privileged containers run them.
	privileged bool
}

// classes lists the tests that WIDE omits; docs/figures/conformance.md shows it. Tests that only some machines cannot
// run are in limits.
var classes = []class{
	{name: regexp.MustCompile(`\[Conformance\]|\[Disruptive\]|\[Flaky\]`), reason: "Conformance runs separately; disruptive tests restart nodes by ssh; upstream itself ignores the results of flaky tests"},
	{name: regexp.MustCompile(`\[Alpha\]|\[Feature:OffByDefault\]|\[FeatureGate:(DRA|Volume|CSI|Generic|CrossNamespace|Gang|Mutable)`), reason: "a feature gate that is off, or API objects that only such a gate enables"},
	{name: regexp.MustCompile(`\[DRA\]|\[Feature:(DynamicResource|GPU)`), reason: "device drivers (dynamic resource allocation)"},
	{name: regexp.MustCompile(`\[Driver: (csi|pd|azure|nfs|cinder|iscsi|vsphere|rbd|ceph|gce)|\[Feature:(Volume|volume|snapshot|PersistentVolume|Flex)|VolumeGroup|PersistentVolumes NFS|vsphere`),
		reason: "a storage driver: CSI, flexVolume, or one of a cloud or storage server"},
	{name: regexp.MustCompile(`CSI Mock`), reason: "privileged pods, which look at the kubelet's directories: RUNTIME=runc-privileged runs them", privileged: true},
	{name: regexp.MustCompile(`\[Driver: (local|hostPathSymlink)|\[LocalVolumeType|\[Volume type|PersistentVolumes-local`), reason: "privileged pods that enter the host's mount namespace and prepare its disks: VM=1 runs a part of them"},
	{name: regexp.MustCompile(`ntfs|\(xfs\)|\(ext[34]\)`), reason: "a driver that formats file systems"},
	{name: regexp.MustCompile(`SELinux`), reason: "a kernel with SELinux"},
	{name: regexp.MustCompile(`\[Feature:(Gce|GKE|Cloud|LoadBalancer|Ingress|Scal|Cluster|Bootstrap|Reboot|StatefulSet|Performance|Regular|KubeProxyDaemonSet|NodeLogQuery|Kubelet|NoSNAT|Topology)`), reason: "a cloud, ssh to the nodes, or machines to compare"},
	{name: regexp.MustCompile(`\[Feature:ExperimentalResourceUsageTracking\]`), reason: "an upstream suite that measures: it starts to poll with the context of a BeforeEach, which ends with it, and finds no figure 20 minutes later (v1.36.3, test/e2e/node/kubelet_perf.go)"},
	{name: regexp.MustCompile(`\[Feature:(NetworkPolicy|SCTP|ServiceCIDR|User|Downward|Runtime|Node|ResourceHealth|WatchList)`), reason: "a policy controller, SCTP, user namespaces, huge pages or a second runtime, which this cluster lacks"},
	{name: regexp.MustCompile(`\[Feature:IPv6DualStack\]`), reason: "addresses of both families: DUAL_STACK=1 makes such a cluster and runs them", dual: true},
	{name: regexp.MustCompile(`\[Feature:PodGarbageCollector\]`), reason: "a controller manager with --terminated-pod-gc-threshold=100; clusters of kubeadm and this one use the default, 12500"},
	{name: regexp.MustCompile(`\[Feature:Networking-(IPv4|IPv6|DNS)\]|DNS configMap nameserver Forward PTR lookup`), reason: "Internet access: names in its DNS"},
	{name: regexp.MustCompile(`\[Feature:Networking-Performance\]`), reason: "an iperf that reports 17 fields; Debian's, which is in this cluster's images, reports 9"},
	{name: regexp.MustCompile(`DynamicProvisioner External|KubeProxy should set TCP CLOSE_WAIT timeout`), reason: "an image with an NFS server or iptables, which must come from a registry"},
	{name: regexp.MustCompile(`\[Feature:Windows`), reason: "Windows nodes"},
}

// leftOut reports whether WIDE omits a test in the options' cluster.
func leftOut(name string, o options) bool {
	return slices.ContainsFunc(classes, func(c class) bool {
		return c.name.MatchString(name) && !(c.dual && o.dual) && !(c.privileged && o.privileged())
	})
}
