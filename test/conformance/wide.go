package main

import (
	"regexp"
	"slices"
)

// wideSIGs are the groups in whose tests beyond Conformance a node matters.
const wideSIGs = "sig-node,sig-network,sig-apps,sig-storage,sig-instrumentation"

// class is a kind of upstream's tests that WIDE leaves out, for what every one of them needs.
type class struct {
	name   *regexp.Regexp
	reason string
}

// classes is the table of what WIDE leaves out; its rows stand in docs/conformance.md. What one machine alone cannot run has its place in limits.
var classes = []class{
	{regexp.MustCompile(`\[Conformance\]|\[Serial\]|\[Disruptive\]|\[Flaky\]`), "runs of their own: Conformance and SERIAL=1; upstream itself does not count the flaky ones"},
	{regexp.MustCompile(`\[Alpha\]|\[Feature:OffByDefault\]|\[FeatureGate:(DRA|Volume|CSI|Generic|CrossNamespace|Gang|Mutable)`), "a feature gate that is off, or objects of the control plane that only such a gate brings"},
	{regexp.MustCompile(`\[DRA\]|\[Feature:(DynamicResource|GPU)`), "drivers for devices (dynamic resource allocation)"},
	{regexp.MustCompile(`\[Driver: (csi|pd|azure|nfs|cinder|iscsi|vsphere|rbd|ceph|gce)|CSI Mock|\[Feature:(Volume|volume|snapshot|PersistentVolume|Flex)|VolumeGroup|PersistentVolumes NFS|vsphere`),
		"a storage driver: CSI, flexVolume, a cloud's or a storage server's"},
	{regexp.MustCompile(`\[Driver: (local|hostPathSymlink)|\[LocalVolumeType|\[Volume type|PersistentVolumes-local`), "privileged pods, which prepare the host's disks"},
	{regexp.MustCompile(`ntfs|\(xfs\)|\(ext[34]\)`), "a driver that formats file systems"},
	{regexp.MustCompile(`SELinux`), "a kernel with SELinux"},
	{regexp.MustCompile(`\[Feature:(Gce|GKE|Cloud|LoadBalancer|Ingress|Scal|Cluster|Bootstrap|Reboot|StatefulSet|Example|Performance|Regular|KubeProxyDaemonSet|NodeLogQuery|Kubelet|NoSNAT|Topology)`), "a cloud, ssh to the nodes, or machines to compare"},
	{regexp.MustCompile(`\[Feature:(NetworkPolicy|SCTP|IPv6DualStack|ServiceCIDR|User|Downward|Runtime|Node|ResourceHealth|WatchList)`), "what this cluster does not have: a policy controller, SCTP, two families, user namespaces, huge pages, a second runtime"},
	{regexp.MustCompile(`\[Feature:PodGarbageCollector\]`), "a controller manager with --terminated-pod-gc-threshold=100; kubeadm's clusters and this one have the default, 12500"},
	{regexp.MustCompile(`\[Feature:Networking-(IPv4|IPv6|DNS)\]`), "a way to the Internet"},
	{regexp.MustCompile(`\[Feature:Networking-Performance\]`), "an iperf that reports 17 fields: that of Debian, in this cluster's images, reports 9"},
	{regexp.MustCompile(`DynamicProvisioner External|KubeProxy should set TCP CLOSE_WAIT timeout`), "an image with an NFS server or iptables, which only a registry has"},
	{regexp.MustCompile(`\[Feature:Windows`), "Windows nodes"},
}

// leftOut says whether WIDE leaves a test out.
func leftOut(name string) bool {
	return slices.ContainsFunc(classes, func(c class) bool { return c.name.MatchString(name) })
}
