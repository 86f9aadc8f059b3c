package app

import "github.com/winkube/winkube/pkg/daemon"

// Why settings of upstream's kube-proxy have no effect here.
const (
	noNAT         = "the proxy relays connections or uses HNS; its NAT rules are for SCTP alone"
	noConntrack   = "the proxy relays connections itself, whatever connection tracking knows of them"
	noLogStream   = "all of the log goes to standard error or --log-file"
	noCadvisor    = "there is no cAdvisor"
	everyLoopback = "node ports are served on loopback unless --nodeport-addresses excludes it"
)

// foreign are settings of current and older upstream releases that this proxy does not have. They are accepted so that
// existing command lines and manifests work, unless they promise something that is not there.
var foreign = []daemon.Foreign{
	{Flag: "log-json-split-stream", Field: "logging.options.json.splitStream", Bool: true, Same: []string{"false"}, Want: "false", Why: noLogStream},
	{Flag: "log-text-split-stream", Field: "logging.options.text.splitStream", Bool: true, Same: []string{"false"}, Want: "false", Why: noLogStream},
	{Flag: "iptables-localhost-nodeports", Field: "iptables.localhostNodePorts", Bool: true, Same: []string{"true"}, Want: "true, or --nodeport-addresses with the ranges to serve", Why: everyLoopback},

	{Flag: "log-json-info-buffer-size", Field: "logging.options.json.infoBufferSize", Same: []string{"0"}, Why: noLogStream},
	{Flag: "log-text-info-buffer-size", Field: "logging.options.text.infoBufferSize", Same: []string{"0"}, Why: noLogStream},
	{Field: "clientConnection.acceptContentTypes", Why: "the proxy accepts --kube-api-content-type and JSON"},
	{Flag: "bind-address-hard-fail", Field: "bindAddressHardFail", Bool: true, Same: []string{"true"}, Why: "the proxy always exits if its address is in use"},
	{Flag: "show-hidden-metrics-for-version", Field: "showHiddenMetricsForVersion", Why: "no metric is hidden"},
	{Flag: "masquerade-all", Field: "iptables.masqueradeAll", Bool: true, Same: []string{"false"}, Why: noNAT},
	{Flag: "iptables-masquerade-bit", Field: "iptables.masqueradeBit", Why: noNAT},
	{Flag: "iptables-min-sync-period", Field: "iptables.minSyncPeriod", Why: "changes are batched for a few milliseconds only"},
	{Field: "nftables", Why: noNAT},
	{Flag: "ipvs-sync-period", Field: "ipvs.syncPeriod", Why: noNAT},
	{Flag: "ipvs-min-sync-period", Field: "ipvs.minSyncPeriod", Why: noNAT},
	{Flag: "ipvs-scheduler", Field: "ipvs.scheduler", Why: noNAT},
	{Flag: "ipvs-exclude-cidrs", Field: "ipvs.excludeCIDRs", Why: noNAT},
	{Flag: "ipvs-strict-arp", Field: "ipvs.strictARP", Bool: true, Why: noNAT},
	{Flag: "ipvs-tcp-timeout", Field: "ipvs.tcpTimeout", Why: noNAT},
	{Flag: "ipvs-tcpfin-timeout", Field: "ipvs.tcpFinTimeout", Why: noNAT},
	{Flag: "ipvs-udp-timeout", Field: "ipvs.udpTimeout", Why: "use --udp-timeout"},
	{Flag: "cleanup-ipvs", Bool: true, Why: noNAT},
	{Flag: "cleanup-iptables", Bool: true, Why: "use --cleanup"},
	{Flag: "detect-local-mode", Field: "detectLocalMode", Why: noNAT},
	{Flag: "pod-bridge-interface", Field: "detectLocal.bridgeInterface", Why: noNAT},
	{Flag: "pod-interface-name-prefix", Field: "detectLocal.interfaceNamePrefix", Why: noNAT},
	{Flag: "boot-id-file", Why: noCadvisor},
	{Flag: "machine-id-file", Why: noCadvisor},
	{Flag: "oom-score-adj", Field: "oomScoreAdj", Why: "start the process with the score that you want"},
	{Flag: "conntrack-max", Why: "use --conntrack-min"},
	{Flag: "conntrack-tcp-timeout-established", Field: "conntrack.tcpEstablishedTimeout", Why: noConntrack},
	{Flag: "conntrack-tcp-timeout-close-wait", Field: "conntrack.tcpCloseWaitTimeout", Why: noConntrack},
	{Flag: "conntrack-tcp-be-liberal", Field: "conntrack.tcpBeLiberal", Bool: true, Why: noConntrack},
	{Flag: "conntrack-udp-timeout", Field: "conntrack.udpTimeout", Why: noConntrack},
	{Flag: "conntrack-udp-timeout-stream", Why: "use --udp-timeout"},
	{Flag: "root-hnsendpoint-name", Field: "winkernel.rootHnsEndpointName", Why: "the host's own endpoint is not among the load balancers' sources"},
	{Flag: "forward-healthcheck-vip", Field: "winkernel.forwardHealthCheckVip", Bool: true, Why: "health check node ports are served on every address of the host"},
	{Flag: "proxy-port-range", Field: "portRange", Why: "the system chooses ports"},
	{Flag: "resource-container", Why: "start the process in the cgroup that you want"},
}
