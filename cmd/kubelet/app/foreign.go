package app

import (
	"slices"

	"github.com/winkube/winkube/pkg/daemon"
)

// Why settings of upstream are refused or have no effect.
const (
	noPinning   = "this kubelet pins no container to CPUs or NUMA nodes"
	noCadvisor  = "there is no cAdvisor"
	noLogStream = "all of the log goes to standard error or --log-file"
	noIPTables  = "the kubelet writes no iptables rules of this kind"
	noMemoryQoS = "the kubelet does not set memory.high, memory.low or memory.min"
	noMoving    = "the kubelet moves no processes of the system between cgroups"
)

// foreign are the settings of upstream's kubelet that this one does not have, of 1.36 and of older releases, and flags of cri-dockerd. Cluster setup
// guides, the SDN scripts, kubeadm and configurations that others wrote have them. What promises something that is not there is refused.
var foreign = slices.Concat(refusedHere, ignoredHere, ofCadvisor())

var refusedHere = []daemon.Foreign{
	{Flag: "cpu-manager-policy", Field: "cpuManagerPolicy", Same: []string{"none"}, Want: "none", Why: noPinning},
	{Flag: "cpu-manager-policy-options", Field: "cpuManagerPolicyOptions", Want: "no options", Why: noPinning},
	{Flag: "memory-manager-policy", Field: "memoryManagerPolicy", Same: []string{"None"}, Want: "None", Why: noPinning},
	{Flag: "reserved-memory", Field: "reservedMemory", Want: "no value, and --system-reserved=memory=... instead", Why: noPinning},
	{Flag: "topology-manager-policy", Field: "topologyManagerPolicy", Same: []string{"none"}, Want: "none", Why: noPinning},
	{Flag: "topology-manager-policy-options", Field: "topologyManagerPolicyOptions", Want: "no options", Why: noPinning},
	{Flag: "reserved-cpus", Field: "reservedSystemCPUs", Want: "no value, and --system-reserved=cpu=... instead", Why: noPinning},
	{Flag: "qos-reserved", Field: "qosReserved", Want: "no value", Why: "memory is not reserved for guaranteed pods beyond their requests"},
	{Flag: "cpu-cfs-quota", Field: "cpuCFSQuota", Bool: true, Same: []string{"true"}, Want: "true, and pods without CPU limits", Why: "the engine enforces the CPU limits of pods"},
	{Flag: "cpu-cfs-quota-period", Field: "cpuCFSQuotaPeriod", Same: []string{"100ms", "0s"}, Want: "100ms", Why: "the period is the kernel's default"},
	{Flag: "enable-controller-attach-detach", Field: "enableControllerAttachDetach", Bool: true, Same: []string{"true"}, Want: "true", Why: "the controller of the control plane attaches volumes"},
	{Flag: "local-storage-capacity-isolation", Field: "localStorageCapacityIsolation", Bool: true, Same: []string{"true"}, Want: "true", Why: "limits of ephemeral storage are always enforced"},
	{Flag: "runonce", Field: "runOnce", Bool: true, Same: []string{"false"}, Want: "false", Why: "the kubelet runs until it is stopped"},
	{Flag: "system-cgroups", Field: "systemCgroups", Want: "no value", Why: noMoving},
	{Flag: "lock-file", Want: "no file", Why: "the service manager runs one kubelet"},
	{Flag: "exit-on-lock-contention", Bool: true, Same: []string{"false"}, Want: "false", Why: "there is no lock file"},
	{Flag: "experimental-mounter-path", Want: "no path", Why: "the kubelet or a CSI driver mounts volumes"},
	{Flag: "experimental-allocatable-ignore-eviction", Bool: true, Same: []string{"false"}, Want: "false, or lower --eviction-hard", Why: "the hard eviction thresholds are subtracted from the allocatable resources"},
	{Flag: "log-json-split-stream", Field: "logging.options.json.splitStream", Bool: true, Same: []string{"false"}, Want: "false", Why: noLogStream},
	{Flag: "log-text-split-stream", Field: "logging.options.text.splitStream", Bool: true, Same: []string{"false"}, Want: "false", Why: noLogStream},
	{Field: "memorySwap.swapBehavior", Same: []string{"NoSwap"}, Want: "NoSwap, or no value", Why: "pods have no swap; on cgroup v1 those without memory limits may have it"},
	{Field: "memoryReservationPolicy", Same: []string{"None"}, Want: "None", Why: noMemoryQoS},
	{Field: "singleProcessOOMKill", Same: []string{"true"}, Want: "true, or no value", Why: "Docker lets the kernel kill single processes of a container"},
	{Field: "userNamespaces", Same: []string{"65536"}, Want: "no value", Why: "Docker cannot give a pod its own user namespace"},
	{Field: "tracing", Want: "no value", Why: "the kubelet sends no traces"},
}

var ignoredHere = []daemon.Foreign{
	{Flag: "cpu-manager-reconcile-period", Field: "cpuManagerReconcilePeriod", Same: []string{"10s"}, Why: noPinning},
	{Flag: "topology-manager-scope", Field: "topologyManagerScope", Same: []string{"container"}, Why: noPinning},
	{Flag: "make-iptables-util-chains", Field: "makeIPTablesUtilChains", Bool: true, Same: []string{"true"}, Why: noIPTables},
	{Flag: "iptables-masquerade-bit", Field: "iptablesMasqueradeBit", Same: []string{"14"}, Why: noIPTables},
	{Flag: "iptables-drop-bit", Field: "iptablesDropBit", Same: []string{"15"}, Why: noIPTables},
	{Flag: "volume-stats-agg-period", Field: "volumeStatsAggPeriod", Same: []string{"1m0s"}, Why: "volumes are measured when their figures are needed"},
	{Flag: "kernel-memcg-notification", Field: "kernelMemcgNotification", Bool: true, Same: []string{daemon.Any}, Why: "the kernel always reports when memory runs out, where it can"},
	{Flag: "kube-reserved-cgroup", Field: "kubeReservedCgroup", Why: "only --enforce-node-allocatable=kube-reserved would use it, which is refused"},
	{Flag: "system-reserved-cgroup", Field: "systemReservedCgroup", Why: "only --enforce-node-allocatable=system-reserved would use it, which is refused"},
	{Flag: "fail-cgroupv1", Field: "failCgroupV1", Bool: true, Same: []string{"false"}, Why: "the kubelet starts on hosts with cgroup v1"},
	{Flag: "fail-swap-on", Field: "failSwapOn", Bool: true, Same: []string{"false"}, Why: "the kubelet starts on hosts with swap"},
	{Flag: "image-service-endpoint", Field: "imageServiceEndpoint", Same: []string{daemon.Any}, Why: "the runtime is Docker, see --docker-endpoint"},
	{Flag: "container-runtime-endpoint", Field: "containerRuntimeEndpoint", Same: []string{daemon.Any}, Why: "the runtime is Docker, see --docker-endpoint"},
	{Flag: "cgroup-driver", Field: "cgroupDriver", Same: []string{daemon.Any}, Why: "Docker's cgroup driver is used"},
	{Flag: "kubelet-cgroups", Field: "kubeletCgroups", Why: "the kubelet reports the cgroup in which it was started"},
	{Flag: "hairpin-mode", Field: "hairpinMode", Same: []string{"promiscuous-bridge", "hairpin-veth"}, Why: "proxy serves Services on the node; a pod reaches itself without hairpin"},
	{Flag: "log-json-info-buffer-size", Field: "logging.options.json.infoBufferSize", Same: []string{"0"}, Why: noLogStream},
	{Flag: "log-text-info-buffer-size", Field: "logging.options.text.infoBufferSize", Same: []string{"0"}, Why: noLogStream},
	{Field: "memoryThrottlingFactor", Same: []string{"0.9"}, Why: noMemoryQoS}, // upstream uses it with the feature gate MemoryQoS alone, off by default
	{Field: "containerLogMaxWorkers", Same: []string{"1"}, Why: "Docker rotates the logs"},
	{Field: "containerLogMonitorInterval", Same: []string{"10s"}, Why: "Docker rotates the logs"},
	{Field: "configMapAndSecretChangeDetectionStrategy", Same: []string{"Watch"}, Why: "the kubelet watches the objects that its pods use"},
	{Flag: "show-hidden-metrics-for-version", Field: "showHiddenMetricsForVersion", Why: "no metric is hidden"},
	{Flag: "allow-privileged", Bool: true, Why: "the API server's admission decides on privileged pods"},
	{Flag: "require-kubeconfig", Bool: true, Why: "--kubeconfig or --api-servers is always required"},
	{Flag: "network-plugin", Why: "the network follows from --network-mode"},
	{Flag: "cadvisor-port", Why: noCadvisor},
	{Flag: "container-runtime", Same: []string{"docker"}, Why: "the runtime is Docker"},
	{Flag: "configure-cbr0", Bool: true, Why: "the network follows from --network-mode"},
	{Flag: "non-masquerade-cidr", Why: "use --non-masquerade-cidrs"},
	{Flag: "pod-sandbox-image", Why: "use --pod-infra-container-image"},
	{Flag: "runtime-cgroups", Why: "Docker is found by its socket"},
	{Flag: "experimental-cri", Bool: true, Why: "the runtime is Docker"},
	{Flag: "docker", Why: "use --docker-endpoint"},
}

// ofCadvisor are flags that upstream's kubelet has from cAdvisor, all but the first by mistake.
func ofCadvisor() []daemon.Foreign {
	list := []daemon.Foreign{{Flag: "enable-load-reader", Bool: true, Why: noCadvisor}, {Flag: "log-cadvisor-usage", Bool: true, Why: noCadvisor}, {Flag: "storage-driver-secure", Bool: true, Why: noCadvisor}}
	for _, name := range []string{"housekeeping-interval", "application-metrics-count-limit", "boot-id-file", "container-hints", "containerd", "containerd-namespace", "event-storage-age-limit", "event-storage-event-limit",
		"global-housekeeping-interval", "machine-id-file", "storage-driver-user", "storage-driver-password", "storage-driver-host", "storage-driver-db", "storage-driver-table", "storage-driver-buffer-duration"} {
		list = append(list, daemon.Foreign{Flag: name, Why: noCadvisor})
	}
	return list
}
