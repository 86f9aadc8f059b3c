package app

import "github.com/spf13/pflag"

// Why flags of upstream's kube-proxy have no effect here.
const (
	noNAT       = "the proxy relays connections or uses HNS, and writes no NAT or IPVS rules"
	noConntrack = "the proxy relays connections itself and does not use connection tracking"
)

// retired are flags of current and older upstream releases that have no effect here. They are accepted so that existing
// command lines and manifests work, and each prints one line that says why it has no effect. valued flags need a value;
// the others may have none.
var retired = []struct {
	name   string
	valued bool
	why    string
}{
	{"bind-address-hard-fail", false, "the proxy always exits if its address is in use"},
	{"show-hidden-metrics-for-version", true, "no metric is hidden"},
	{"masquerade-all", false, noNAT},
	{"iptables-masquerade-bit", true, noNAT},
	{"iptables-localhost-nodeports", false, "node ports are served on loopback unless --nodeport-addresses excludes it"},
	{"iptables-min-sync-period", true, "changes are batched for a few milliseconds only"},
	{"ipvs-sync-period", true, noNAT},
	{"ipvs-min-sync-period", true, noNAT},
	{"ipvs-scheduler", true, noNAT},
	{"ipvs-exclude-cidrs", true, noNAT},
	{"ipvs-strict-arp", false, noNAT},
	{"ipvs-tcp-timeout", true, noNAT},
	{"ipvs-tcpfin-timeout", true, noNAT},
	{"ipvs-udp-timeout", true, "use --udp-timeout"},
	{"cleanup-ipvs", false, noNAT},
	{"cleanup-iptables", false, "use --cleanup"},
	{"detect-local-mode", true, noNAT},
	{"pod-bridge-interface", true, noNAT},
	{"pod-interface-name-prefix", true, noNAT},
	{"oom-score-adj", true, "start the process with the score that you want"},
	{"conntrack-max", true, noConntrack},
	{"conntrack-max-per-core", true, noConntrack},
	{"conntrack-min", true, noConntrack},
	{"conntrack-tcp-timeout-established", true, noConntrack},
	{"conntrack-tcp-timeout-close-wait", true, noConntrack},
	{"conntrack-tcp-be-liberal", false, noConntrack},
	{"conntrack-udp-timeout", true, noConntrack},
	{"conntrack-udp-timeout-stream", true, "use --udp-timeout"},
	{"root-hnsendpoint-name", true, "the host's own endpoint is not among the load balancers' sources"},
	{"forward-healthcheck-vip", false, "health check node ports are served on every address of the host"},
	{"proxy-port-range", true, "the system chooses ports"},
	{"resource-container", true, "start the process in the cgroup that you want"},
}

func addRetiredFlags(fs *pflag.FlagSet) {
	for _, r := range retired {
		if fs.Lookup(r.name) != nil {
			continue // a back end defines it
		}
		fs.String(r.name, "", "")
		f := fs.Lookup(r.name)
		f.Deprecated, f.Hidden = "it has no effect: "+r.why, true
		if !r.valued {
			f.NoOptDefVal = "true"
		}
	}
}
