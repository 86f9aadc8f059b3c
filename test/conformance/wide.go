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
}

// classes lists the tests that WIDE omits; docs/figures/conformance.md shows it. Tests that only some machines cannot
// run are in limits.
var classes = []class{
	{regexp.MustCompile(`\[Conformance\]|\[Disruptive\]|\[Flaky\]`), "Conformance runs separately; disruptive tests restart nodes by ssh; upstream itself ignores the results of flaky tests"},
	{regexp.MustCompile(`\[Alpha\]|\[Feature:OffByDefault\]|\[FeatureGate:(DRA|Volume|CSI|Generic|CrossNamespace|Gang|Mutable)`), "a feature gate that is off, or API objects that only such a gate enables"},
	{regexp.MustCompile(`\[DRA\]|\[Feature:(DynamicResource|GPU)`), "device drivers (dynamic resource allocation)"},
	{regexp.MustCompile(`\[Driver: (csi|pd|azure|nfs|cinder|iscsi|vsphere|rbd|ceph|gce)|CSI Mock|\[Feature:(Volume|volume|snapshot|PersistentVolume|Flex)|VolumeGroup|PersistentVolumes NFS|vsphere`),
		"a storage driver: CSI, flexVolume, or one of a cloud or storage server"},
	{regexp.MustCompile(`\[Driver: (local|hostPathSymlink)|\[LocalVolumeType|\[Volume type|PersistentVolumes-local`), "privileged pods, which prepare the host's disks"},
	{regexp.MustCompile(`ntfs|\(xfs\)|\(ext[34]\)`), "a driver that formats file systems"},
	{regexp.MustCompile(`SELinux`), "a kernel with SELinux"},
	{regexp.MustCompile(`\[Feature:(Gce|GKE|Cloud|LoadBalancer|Ingress|Scal|Cluster|Bootstrap|Reboot|StatefulSet|Performance|Regular|KubeProxyDaemonSet|NodeLogQuery|Kubelet|NoSNAT|Topology)`), "a cloud, ssh to the nodes, or machines to compare"},
	{regexp.MustCompile(`\[Feature:(NetworkPolicy|SCTP|IPv6DualStack|ServiceCIDR|User|Downward|Runtime|Node|ResourceHealth|WatchList)`), "a policy controller, SCTP, dual-stack networking, user namespaces, huge pages or a second runtime, which this cluster lacks"},
	{regexp.MustCompile(`\[Feature:PodGarbageCollector\]`), "a controller manager with --terminated-pod-gc-threshold=100; clusters of kubeadm and this one use the default, 12500"},
	{regexp.MustCompile(`\[Feature:Networking-(IPv4|IPv6|DNS)\]`), "Internet access"},
	{regexp.MustCompile(`\[Feature:Networking-Performance\]`), "an iperf that reports 17 fields; Debian's, which is in this cluster's images, reports 9"},
	{regexp.MustCompile(`DynamicProvisioner External|KubeProxy should set TCP CLOSE_WAIT timeout`), "an image with an NFS server or iptables, which must come from a registry"},
	{regexp.MustCompile(`\[Feature:Windows`), "Windows nodes"},
}

// leftOut reports whether WIDE omits a test.
func leftOut(name string) bool {
	return slices.ContainsFunc(classes, func(c class) bool { return c.name.MatchString(name) })
}
