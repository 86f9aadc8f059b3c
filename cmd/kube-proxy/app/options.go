package app

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	config "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/winkube/winkube/pkg/daemon"
)

// envInterface names the interface for service addresses, as in the first releases for Windows.
const envInterface = "INTERFACE_TO_ADD_SERVICE_IP"

const (
	defaultHealthz = "0.0.0.0:10256"
	defaultMetrics = "127.0.0.1:10249"
)

// options is the user's configuration: a KubeProxyConfiguration, with flags bound to its fields, and the flags without
// a field.
type options struct {
	config config.KubeProxyConfiguration
	file   daemon.ConfigFile // which fields of config the file set

	configPath, writeConfigTo string
	master                    string
	userspaceBackend          string
	connectCgroup             string
	clientShare               int
	networkMode, nextHop      string
	healthzPort, metricsPort  int
	windowsFirewall           bool
	cleanup, initOnly         bool
	rotateToken               bool
}

// addFlags declares the flags. Flags for fields of config default to the field's current value. Names, defaults and
// meanings are upstream's if upstream has (or had) the flag.
func (o *options) addFlags(fs *pflag.FlagSet) {
	daemon.AddFlags(fs)
	c := &o.config
	fs.StringVar(&o.configPath, "config", "", "`file` with a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1); flags override it")
	fs.StringVar(&o.writeConfigTo, "write-config-to", "", "write the resulting configuration to this `file`, and exit")
	fs.StringVar(&c.ClientConnection.Kubeconfig, "kubeconfig", c.ClientConnection.Kubeconfig, "`file` with the API server's address and the proxy's credentials")
	fs.BoolVar(&o.rotateToken, "rotate-token-file", false, "renew the service account's token in the file that --kubeconfig names as tokenFile, with the rights of that token")
	fs.StringVar(&o.master, "master", "", "API server's `address`: host:port, http://... or https://...; overrides that of --kubeconfig")
	fs.Float32Var(&c.ClientConnection.QPS, "kube-api-qps", c.ClientConnection.QPS, "requests per second to the API server")
	fs.Int32Var(&c.ClientConnection.Burst, "kube-api-burst", c.ClientConnection.Burst, "requests to the API server in a burst")
	fs.StringVar(&c.ClientConnection.ContentType, "kube-api-content-type", c.ClientConnection.ContentType, "content `type` of requests to the API server")
	fs.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration, "how often all cached objects of the API server are processed again")
	fs.StringVar(&c.HostnameOverride, "hostname-override", c.HostnameOverride, "`name` of the Node (default: the host's name in lower case)")
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "`address` of this node; 0.0.0.0 and :: allow both address families")

	fs.StringVar((*string)(&c.Mode), "proxy-mode", string(c.Mode), "userspace: this program relays connections, on every system; connect: BPF programs of Linux choose an endpoint when a client on this host connects to a ClusterIP, and this program relays the rest; kernelspace: load balancers of HNS on Windows distribute connections; auto: connect on Linux, elsewhere the default (default: userspace; on Windows with --network-mode=overlay kernelspace)")
	fs.StringVar(&o.connectCgroup, "connect-cgroup", "", "`directory` of a cgroup of version 2; the clients in it and below are those of this host, for --proxy-mode=connect (default: all processes)")
	fs.StringVar(&o.userspaceBackend, "userspace-backend", "relay", "`backend` for userspace: relay, this program; portproxy, Windows' IP Helper for TCP with one endpoint")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses, "`ranges` of this host's addresses that serve node ports; primary: the addresses of the Node (default: all)")
	fs.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "`range` of all pods, or an IPv4 and an IPv6 range, separated by a comma; routes are written only to ranges within it")
	fs.DurationVar(&c.Conntrack.UDPStreamTimeout.Duration, "udp-timeout", c.Conntrack.UDPStreamTimeout.Duration, "how long a UDP session may be idle; single requests with a response last 10s at most")
	fs.Int32Var(c.Conntrack.MaxPerCore, "conntrack-max-per-core", *c.Conntrack.MaxPerCore, "`entries` of the kernel's connection tracking for each processor: the proxy raises net.netfilter.nf_conntrack_max to this where it is lower, --cleanup restores it; 0: leave it; for Linux")
	fs.Int32Var(c.Conntrack.Min, "conntrack-min", *c.Conntrack.Min, "least `entries` of connection tracking, however few processors; without effect if --conntrack-max-per-core is 0")
	fs.IntVar(&o.clientShare, "client-share", 50, "`percent` of each limit that one client's address may have: connections and sessions of a Service's port and of the node, source ports to one endpoint; for userspace")
	fs.DurationVar(&c.IPTables.SyncPeriod.Duration, "iptables-sync-period", c.IPTables.SyncPeriod.Duration, "how often everything on the host is compared with the desired state")
	fs.StringVar(&o.networkMode, "network-mode", "host-gateway", "the same as the kubelet's. host-gateway: write routes to the pods of other nodes; overlay: write the tunnels to them; upstream, external, cni: write nothing. Use host-gateway with a CNI plugin that only configures its own node")
	fs.StringVar(&o.nextHop, "route-next-hop", "node", "next hop of routes to other nodes. node: the other node's address; pod-gateway: the first address of its pods' range")

	fs.StringVar(&c.HealthzBindAddress, "healthz-bind-address", c.HealthzBindAddress, "`address` and port of /healthz and /livez; empty: none")
	fs.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress, "`address` and port of /metrics and /debug/table; empty: none")
	fs.IntVar(&o.healthzPort, "healthz-port", 10256, "port of /healthz if --healthz-bind-address has none; 0: not served")
	fs.IntVar(&o.metricsPort, "metrics-port", 10249, "port of /metrics if --metrics-bind-address has none; 0: not served")
	fs.BoolVar(&o.windowsFirewall, "windows-firewall", true, "open the ports of this program in Windows Firewall, with portproxy also the ports that Windows listens on for it; false: write no rules")
	fs.BoolVar(&c.EnableProfiling, "profiling", c.EnableProfiling, "serve /debug/pprof beside /metrics")
	fs.BoolVar(&o.cleanup, "cleanup", false, "remove the addresses, interface, routes and rules that a proxy left on this host, and its HNS load balancers, and exit; give --network-mode, --network-name, --connect-cgroup or --config, and the environment, as the proxy had them")

	fs.BoolVar(&o.initOnly, "init-only", false, "check flags and configuration, and exit; the proxy has nothing to initialize")

	fs.StringVar(&c.Winkernel.NetworkName, "network-name", c.Winkernel.NetworkName, "HNS network of the pods ($KUBE_NETWORK); for kernelspace (default with --network-mode=host-gateway, upstream or overlay: the network that the kubelet makes)")
	fs.StringVar(&c.Winkernel.SourceVip, "source-vip", c.Winkernel.SourceVip, "`address` for traffic to other nodes in overlay networks; for kernelspace (default: the third address of this node's pod range, which the kubelet reserves)")
	fs.BoolVar(&c.Winkernel.EnableDSR, "enable-dsr", c.Winkernel.EnableDSR, "use direct server return for load balancers of HNS; for kernelspace")
	fs.Var(gates{&c.FeatureGates}, "feature-gates", "`name=true,...`; logged and ignored")
	daemon.AddForeign(fs, foreign)
}

// gates implements --feature-gates, bound to the field.
type gates struct{ to *map[string]bool }

func (gates) Type() string { return "stringToBool" }

// String formats the gates as Set accepts them.
func (g gates) String() string {
	if g.to == nil {
		return ""
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(*g.to)) {
		parts = append(parts, fmt.Sprintf("%s=%t", name, (*g.to)[name]))
	}
	return strings.Join(parts, ",")
}

// Set adds or changes gates.
func (g gates) Set(text string) error {
	if *g.to == nil {
		*g.to = map[string]bool{}
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%q: want name=true or name=false", part)
		}
		(*g.to)[name] = on
	}
	return nil
}

// server returns the API server for the client's configuration, which accepts either it or a kubeconfig.
func (o *options) server() string {
	if o.config.ClientConnection.Kubeconfig != "" {
		return ""
	}
	return o.master
}

// notes returns one line for each option that has no effect, with the reason.
func (o *options) notes(fs *pflag.FlagSet, s *settings) []string {
	var out []string
	backEnd := s.backEnd
	for _, name := range []string{"conntrack-max-per-core", "conntrack-min"} {
		if f := fs.Lookup(name); s.windows && (f.Changed || o.file.Sets(name)) {
			out = append(out, fmt.Sprintf("Ignored --%s=%s: Windows has no such table", name, f.Value))
		}
	}
	if o.config.Mode == "kernelspace" && backEnd != byHNS {
		out = append(out, "Using --proxy-mode=userspace instead of kernelspace: only Windows has HNS load balancers. The same Services are served")
	}
	if network := os.Getenv("KUBE_NETWORK"); network != "" && backEnd != byHNS {
		out = append(out, fmt.Sprintf("Ignored KUBE_NETWORK=%s: --proxy-mode=userspace does not use it", network))
	}
	for _, name := range []string{"network-name", "source-vip", "enable-dsr"} {
		if f := fs.Lookup(name); (f.Changed || o.file.Sets(name)) && backEnd != byHNS {
			out = append(out, fmt.Sprintf("Ignored --%s=%s: --proxy-mode=userspace does not use it", name, f.Value))
		}
	}
	out = append(out, o.file.Ignored(foreign, &o.config, bindings)...)
	for name, value := range o.config.FeatureGates {
		out = append(out, fmt.Sprintf("Ignored --feature-gates %s=%t: this proxy has no such gate", name, value))
	}
	return out
}
