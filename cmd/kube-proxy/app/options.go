package app

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// envInterface names the interface that is to hold the addresses of services, as in the first releases for Windows.
const envInterface = "INTERFACE_TO_ADD_SERVICE_IP"

const (
	defaultHealthz = "0.0.0.0:10256"
	defaultMetrics = "127.0.0.1:10249"
)

// options are the flags as typed; settings (settings.go) are what they mean.
type options struct {
	kubeconfig, master   string
	kubeAPIQPS           float32
	kubeAPIBurst         int
	kubeAPIContentType   string
	configSync           time.Duration
	hostnameOverride     string
	bindAddress          string
	proxyMode            string
	userspaceBackend     string
	nodePortAddresses    []string
	clusterCIDR          string
	networkMode, nextHop string
	udpTimeout, resync   time.Duration
	clientShare          int
	healthz, metrics     string
	healthzPort          int
	metricsPort          int
	profiling, cleanup   bool
	windowsFirewall      bool
	initOnly             bool

	configPath, writeConfigTo string
	file                      fileConfig // what configPath holds

	networkName, sourceVIP string
	enableDSR              bool
	featureGates           map[string]string
}

// addFlags declares the flags that act. Names, defaults and meanings are upstream's where upstream has (or had) the flag.
func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.configPath, "config", "", "`file` with a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1); flags that are given win over it")
	fs.StringVar(&o.writeConfigTo, "write-config-to", "", "write the configuration that flags and --config make to this `file`, and end")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the API server's address and the proxy's credentials")
	fs.StringVar(&o.master, "master", "", "API server's `address`: host:port, http://... or https://...; overrides that of --kubeconfig")
	fs.Float32Var(&o.kubeAPIQPS, "kube-api-qps", 5, "requests per second to the API server")
	fs.IntVar(&o.kubeAPIBurst, "kube-api-burst", 10, "requests to the API server that may come at once")
	fs.StringVar(&o.kubeAPIContentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf", "content `type` of requests to the API server")
	fs.DurationVar(&o.configSync, "config-sync-period", 15*time.Minute, "how often cached objects of the API server are looked at again")
	fs.StringVar(&o.hostnameOverride, "hostname-override", "", "`name` of the Node (default: the host's name in lower case)")
	fs.StringVar(&o.bindAddress, "bind-address", "0.0.0.0", "`address` of this node; 0.0.0.0 and :: leave both families to the cluster")

	fs.StringVar(&o.proxyMode, "proxy-mode", "", "userspace: connections are relayed by this program, on every system; kernelspace: by HNS load balancers of Windows (default: userspace, on Windows with --network-mode=overlay kernelspace)")
	fs.StringVar(&o.userspaceBackend, "userspace-backend", "relay", "`who` relays in userspace: relay, this program; portproxy, Windows' IP Helper for TCP with one endpoint")
	fs.StringSliceVar(&o.nodePortAddresses, "nodeport-addresses", nil, "`ranges` of this host's addresses that serve node ports; primary: those of the Node (default: all)")
	fs.StringVar(&o.clusterCIDR, "cluster-cidr", "", "`range` of all pods, or two of both families with a comma between: no route is written to a range outside of it")
	fs.DurationVar(&o.udpTimeout, "udp-timeout", 2*time.Minute, "how long a UDP session may be silent; single questions and answers live 10s at most")
	fs.IntVar(&o.clientShare, "client-share", 50, "`percent` of each limit that one client's address may have: connections and sessions of a Service's port and of the node, source ports towards one endpoint; for userspace")
	fs.DurationVar(&o.resync, "iptables-sync-period", 30*time.Second, "how often the whole host is compared with what it should be")
	fs.StringVar(&o.networkMode, "network-mode", "host-gateway", "as of the kubelet. host-gateway: keep routes to the other nodes' pods; overlay: keep the tunnels to them; upstream, external, cni: nothing; beside kubelets with cni, whose plugin knows only its own node, host-gateway")
	fs.StringVar(&o.nextHop, "route-next-hop", "node", "next hop of those routes. node: the other node's address; pod-gateway: the first address of its pods' range")

	fs.StringVar(&o.healthz, "healthz-bind-address", defaultHealthz, "`address` and port of /healthz and /livez; empty: none")
	fs.StringVar(&o.metrics, "metrics-bind-address", defaultMetrics, "`address` and port of /metrics and /debug/table; empty: none")
	fs.IntVar(&o.healthzPort, "healthz-port", 10256, "port of /healthz where --healthz-bind-address names none; 0: not served")
	fs.IntVar(&o.metricsPort, "metrics-port", 10249, "port of /metrics where --metrics-bind-address names none; 0: not served")
	fs.BoolVar(&o.windowsFirewall, "windows-firewall", true, "let through Windows Firewall what this program, and with portproxy Windows for it, listens on; false: it has no rules of ours")
	fs.BoolVar(&o.profiling, "profiling", false, "serve /debug/pprof beside /metrics")
	fs.BoolVar(&o.cleanup, "cleanup", false, "remove the addresses, interface, routes and rules, and with --network-name the HNS load balancers, that a proxy left on this host, and end")

	fs.BoolVar(&o.initOnly, "init-only", false, "end at once: nothing needs more rights at the start than later")

	fs.StringVar(&o.networkName, "network-name", "", "HNS network of the pods ($KUBE_NETWORK); for kernelspace (default with --network-mode=overlay: the network that the kubelet makes)")
	fs.StringVar(&o.sourceVIP, "source-vip", "", "`address` for traffic to other nodes in overlay networks; for kernelspace (default: the third of this node's range, which the kubelet gives to no pod)")
	fs.BoolVar(&o.enableDSR, "enable-dsr", false, "direct server return; for kernelspace")
	fs.StringToStringVar(&o.featureGates, "feature-gates", nil, "`name=true,...`; noted and ignored")
	addRetiredFlags(fs)
}

// server is the API server for the client's configuration, which takes exactly one of it and a kubeconfig.
func (o *options) server() string {
	if o.kubeconfig != "" {
		return ""
	}
	return o.master
}

// notes says in one line each what was asked for and is not done, and why.
func (o *options) notes(fs *pflag.FlagSet, backEnd string) []string {
	var out []string
	if o.proxyMode == "kernelspace" && backEnd != byHNS {
		out = append(out, "Using --proxy-mode=userspace instead of kernelspace: HNS load balancers are of Windows; the same Services are served")
	}
	if network := os.Getenv("KUBE_NETWORK"); network != "" && backEnd != byHNS {
		out = append(out, fmt.Sprintf("Noted KUBE_NETWORK=%s: relaying in userspace does without it", network))
	}
	for _, name := range []string{"network-name", "source-vip", "enable-dsr"} {
		if f := fs.Lookup(name); f.Changed && backEnd != byHNS {
			out = append(out, fmt.Sprintf("Noted --%s=%s: relaying in userspace does without it", name, f.Value))
		}
	}
	out = append(out, o.file.unused()...)
	for name, value := range o.featureGates {
		out = append(out, fmt.Sprintf("Ignored --feature-gates %s=%s: this proxy has no such gate", name, value))
	}
	return out
}
