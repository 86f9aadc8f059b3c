package app

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/kubelet"
	"github.com/winkube/winkube/pkg/pod/plan"
)

const defaultInfraImage = "registry.k8s.io/pause:3.10"

// options are the flags as typed; settings (settings.go) are what they mean.
type options struct {
	configPath, configDir              string
	writeConfigTo, kubeadmFlags        string
	file                               fileConfig // what configPath and configDir hold
	kubeconfig, apiServers             string
	bootstrapKubeconfig                string
	rotateCertificates                 bool
	kubeAPIQPS                         float32
	kubeAPIBurst                       int
	eventQPS                           float32
	eventBurst                         int
	hostnameOverride, nodeIP           string
	cloudProvider, providerID          string
	nodeLabels                         map[string]string
	registerNode                       bool
	taints                             []string
	maxPods, podsPerCore               int
	statusMaxImages                    int
	kubeReserved, systemReserved       map[string]string
	nodeStatusFrequency, syncFrequency time.Duration
	statusReportFrequency              time.Duration
	shutdown                           kubelet.Shutdown
	eviction                           guard.Settings
	evictionTransition                 time.Duration
	evictionMaxGrace                   int
	images                             guard.ImagePolicy
	dead                               plan.DeadLimits

	rootDir, certDir          string
	podLogsDir                string
	dockerEndpoint            string
	infraImage                string
	cgroupRoot                string
	cgroupsPerQoS             bool
	enforceAllocatable        []string
	podMaxPids                int64
	oomScoreAdj               int
	seccompDefault            bool
	unsafeSysctls             []string
	logMaxSize                string
	logMaxFiles               int
	runtimeTimeout            time.Duration
	pullDeadline              time.Duration
	serializePulls            bool
	maxParallelPulls          int
	registryQPS               float32
	registryBurst             int
	providersConfig           string
	providersDir              string
	imagePolicy               string
	allowedImages             []string
	manifestPath, manifestURL string
	manifestURLFrequency      time.Duration
	manifestURLHeader         []string
	fileFrequency             time.Duration

	clusterDNS    []string
	clusterDomain string
	resolvConf    string
	networkMode   string
	cniConfDir    string
	cniBinDirs    []string
	podCIDR       string
	clusterCIDR   string
	nonMasquerade []string

	serviceCIDR, windowsNetwork, adapter string
	windowsFirewall                      bool

	address, healthzAddress           string
	port, healthzPort, readOnlyPort   int
	clientCAFile                      string
	tlsCertFile, tlsKeyFile           string
	rotateServing                     bool
	tlsCipherSuites                   []string
	tlsMinVersion                     string
	anonymousAuth, tokenWebhook       bool
	authorizationMode                 string
	authnTTL, authorizedTTL           time.Duration
	unauthorizedTTL, streamingTimeout time.Duration
	debuggingHandlers, profiling      bool
	featureGates                      map[string]string
}

// addFlags declares the flags that act. Names, defaults and meanings are upstream's where upstream has (or had) the flag.
func (o *options) addFlags(fs *pflag.FlagSet) {
	o.addAPIFlags(fs)
	o.addNodeFlags(fs)
	o.addRuntimeFlags(fs)
	o.addNetworkFlags(fs)
	o.addServerFlags(fs)
	o.addGuardFlags(fs)
}

func (o *options) addAPIFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.configPath, "config", "", "`file` with a KubeletConfiguration; flags win over it")
	fs.StringVar(&o.configDir, "config-dir", "", "`directory` of drop-ins: its *.conf, in the order of their names, go over --config")
	fs.StringVar(&o.writeConfigTo, "write-config-to", "", "write the configuration that flags and files make to this `file`, and end")
	fs.StringVar(&o.kubeadmFlags, "kubeadm-flags", "", "`file` with KUBELET_KUBEADM_ARGS=\"--name=value ...\" as kubeadm writes it; it may come later, flags of the command line win")
	fs.StringVar(&o.bootstrapKubeconfig, "bootstrap-kubeconfig", "", "`file` with which a client certificate is requested where --kubeconfig does not exist; the node's own kubeconfig is then written there")
	fs.BoolVar(&o.rotateCertificates, "rotate-certificates", false, "request a new client certificate before the current one ends")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the API server's address and this node's credentials")
	fs.StringVar(&o.apiServers, "api-servers", "", "API server's `address` without credentials: host:port, http://... or https://... (--kubeconfig is the better way)")
	fs.Float32Var(&o.kubeAPIQPS, "kube-api-qps", 50, "requests per second to the API server")
	fs.IntVar(&o.kubeAPIBurst, "kube-api-burst", 100, "requests to the API server that may come at once")
	fs.Float32Var(&o.eventQPS, "event-qps", 50, "events per second; 0: no limit")
	fs.IntVar(&o.eventBurst, "event-burst", 100, "events that may be sent at once, with --event-qps")
}

func (o *options) addNodeFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.hostnameOverride, "hostname-override", "", "`name` of the Node (default: the host's name in lower case)")
	fs.StringVar(&o.nodeIP, "node-ip", "", "`address` of the node, or two of both families with a comma between; 0.0.0.0 or :: choose the family (default: that of the default route)")
	fs.StringToStringVar(&o.nodeLabels, "node-labels", nil, "labels to register the Node with, `key=value,...`")
	fs.BoolVar(&o.registerNode, "register-node", true, "register the Node when it does not exist")
	fs.StringSliceVar(&o.taints, "register-with-taints", nil, "taints to register the Node with, `key=value:effect,...`")
	fs.StringVar(&o.cloudProvider, "cloud-provider", "", "`external`: the Node is registered with a taint until a cloud's controller manager has seen it, which also gives it its addresses; empty: there is no cloud")
	fs.StringVar(&o.providerID, "provider-id", "", "`name` of the host at its cloud, with which the Node is registered")
	fs.IntVar(&o.maxPods, "max-pods", 110, "number of pods that may run here")
	fs.IntVar(&o.podsPerCore, "pods-per-core", 0, "number of pods that may run here per CPU, where that is less than --max-pods; 0: no such limit")
	fs.StringToStringVar(&o.kubeReserved, "kube-reserved", nil, "resources kept for the agents, `cpu=200m,memory=500Mi,...`")
	fs.StringToStringVar(&o.systemReserved, "system-reserved", nil, "resources kept for the system, `cpu=200m,memory=500Mi,...`")
	fs.DurationVar(&o.nodeStatusFrequency, "node-status-update-frequency", 10*time.Second, "how often the Node's status is reckoned; it is sent only when it changed")
	fs.IntVar(&o.statusMaxImages, "node-status-max-images", 50, "number of images, the biggest ones, of which the Node's status tells; -1: all")
	fs.DurationVar(&o.statusReportFrequency, "node-status-report-frequency", 5*time.Minute, "how often an unchanged Node status is sent all the same")
	fs.DurationVar(&o.shutdown.Grace, "shutdown-grace-period", 0, "how long pods may take to end before the host shuts down; 0: they are left to it, and start again with it (on Windows as a service, on Linux with systemd-logind)")
	fs.DurationVar(&o.shutdown.Critical, "shutdown-grace-period-critical-pods", 0, "the part of --shutdown-grace-period, at its end, that is for critical pods")
	fs.DurationVar(&o.syncFrequency, "sync-frequency", time.Minute, "how often every pod is looked at although nothing is known to have changed")
}

func (o *options) addRuntimeFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.rootDir, "root-dir", defaultRootDir(), "`directory` for pods' volumes and files")
	fs.StringVar(&o.podLogsDir, "pod-logs-dir", defaultPodLogsDir(), "`directory` with links to containers' logs by pod, and beside it containers; empty: none")
	fs.StringVar(&o.certDir, "cert-dir", "", "`directory` for certificates (default: pki below --root-dir)")
	fs.StringVar(&o.dockerEndpoint, "docker-endpoint", "", "Docker Engine's `address`: unix://, npipe:// or tcp:// (default: $DOCKER_HOST or the platform's)")
	fs.StringVar(&o.infraImage, "pod-infra-container-image", defaultInfraImage, "`image` whose container holds each pod's network")
	fs.StringVar(&o.cgroupRoot, "cgroup-root", "", "`cgroup` below which pods' cgroups are made, which must exist; empty: the top (Linux)")
	fs.BoolVar(&o.cgroupsPerQoS, "cgroups-per-qos", true, "give QoS classes and pods cgroups of their own (Linux)")
	fs.StringSliceVar(&o.enforceAllocatable, "enforce-node-allocatable", []string{"pods"}, "`what` is held to its part of the machine: pods, or none (Linux)")
	fs.Int64Var(&o.podMaxPids, "pod-max-pids", -1, "`number` of processes and threads of one pod; -1: no limit (Linux)")
	fs.IntVar(&o.oomScoreAdj, "oom-score-adj", -999, "oom_score_adj of this process, -1000 to 1000 (Linux)")
	fs.BoolVar(&o.seccompDefault, "seccomp-default", false, "give containers that name no seccomp profile the engine's own (Linux)")
	fs.StringSliceVar(&o.unsafeSysctls, "allowed-unsafe-sysctls", nil, "sysctls beside the safe ones that pods may set, as in `kernel.msg*,net.core.somaxconn` (Linux)")
	fs.StringVar(&o.logMaxSize, "container-log-max-size", "10Mi", "`size` at which a container's log is rotated")
	fs.IntVar(&o.logMaxFiles, "container-log-max-files", 5, "number of log files kept of a container, at least 2")
	fs.DurationVar(&o.runtimeTimeout, "runtime-request-timeout", 2*time.Minute, "deadline of one call of the engine, pulls, logs and exec excepted")
	fs.DurationVar(&o.pullDeadline, "image-pull-progress-deadline", time.Minute, "a pull without progress for so long is given up")
	fs.BoolVar(&o.serializePulls, "serialize-image-pulls", false, "pull one image at a time")
	fs.IntVar(&o.maxParallelPulls, "max-parallel-image-pulls", 0, "number of pulls at a time; 0: no limit")
	fs.Float32Var(&o.registryQPS, "registry-qps", 5, "pulls begun per second; 0: no limit")
	fs.IntVar(&o.registryBurst, "registry-burst", 10, "pulls that may begin at once")
	fs.StringVar(&o.providersConfig, "image-credential-provider-config", "", "`file`, or directory of files, with the CredentialProviderConfig of the plugins that are asked for registry logins")
	fs.StringVar(&o.providersDir, "image-credential-provider-bin-dir", "", "`directory` of those plugins' programs")
	fs.StringVar(&o.imagePolicy, "image-pull-credentials-verification-policy", string(credential.NeverVerifyPreloaded), "which present images a pod may use without credentials that proved good for them: NeverVerifyPreloadedImages (those that no kubelet pulled), NeverVerify (all), NeverVerifyAllowlistedImages, AlwaysVerify (none)")
	fs.StringSliceVar(&o.allowedImages, "preloaded-images-verification-allowlist", nil, "`images` of NeverVerifyAllowlistedImages: names without tag, or with /* at the end")
	fs.StringVar(&o.manifestPath, "pod-manifest-path", "", "`directory` of static pods' manifests, or one manifest")
	fs.DurationVar(&o.fileFrequency, "file-check-frequency", 20*time.Second, "how often --pod-manifest-path is read although nothing there is known to have changed")
	fs.StringVar(&o.manifestURL, "manifest-url", "", "`URL` of static pods' manifests")
	fs.StringArrayVar(&o.manifestURLHeader, "manifest-url-header", nil, "`header` of requests to --manifest-url, as in \"authorization: Bearer x\"; may be given again")
	fs.DurationVar(&o.manifestURLFrequency, "http-check-frequency", 20*time.Second, "how often --manifest-url is asked")
	fs.StringToStringVar(&o.featureGates, "feature-gates", nil, "`name=true,...`; HyperVContainer is known, others are noted and ignored")
}

func (o *options) addNetworkFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.clusterDNS, "cluster-dns", nil, "`addresses` of the cluster's DNS")
	fs.StringVar(&o.clusterDomain, "cluster-domain", "", "`domain` of the cluster, as in cluster.local")
	fs.StringVar(&o.resolvConf, "resolv-conf", defaultResolvConf(), "`file` with the host's DNS settings for pods that use them; empty: none")
	fs.StringVar(&o.networkMode, "network-mode", "host-gateway", "host-gateway: proxy keeps routes to other nodes; upstream: a router has them; overlay: VXLAN between the nodes; cni: plugins, see --cni-conf-dir; external: $CONTAINER_NETWORK names an existing Docker network (its default when that is set)")
	addCNIFlags(fs, &o.cniConfDir, &o.cniBinDirs)
	fs.StringVar(&o.podCIDR, "pod-cidr", "", "pods' `range` on this node when the Node has none (default: the Node's spec.podCIDRs)")
	fs.StringVar(&o.clusterCIDR, "cluster-cidr", "", "`range` of all pods: traffic to it keeps the pod's address")
	fs.StringSliceVar(&o.nonMasquerade, "non-masquerade-cidrs", nil, "further `ranges` to which traffic keeps the pod's address")
	fs.StringVar(&o.serviceCIDR, "service-cidr", "", "`range` of services' addresses, which pods of a Windows host's l2bridge network reach by the host")
	fs.StringVar(&o.windowsNetwork, "windows-network", "", "l2bridge, transparent or nat: how pods of Windows are connected (default: l2bridge, before Server 2019 transparent)")
	fs.BoolVar(&o.windowsFirewall, "windows-firewall", true, "let through Windows Firewall what this program listens on: --port, hostPorts; false: no rule of ours does")
	fs.StringVar(&o.adapter, "interface", "", "`name` of the Windows network adapter for the pods' network (default: the one with the node's address)")
}

func addCNIFlags(fs *pflag.FlagSet, conf *string, bins *[]string) {
	fs.StringVar(conf, "cni-conf-dir", "/etc/cni/net.d", "`directory` of CNI network configurations, of which the first by name counts; with --network-mode=cni")
	fs.StringSliceVar(bins, "cni-bin-dir", []string{"/opt/cni/bin"}, "`directories` of CNI plugins")
}

func (o *options) addServerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.address, "address", "0.0.0.0", "`address` of the kubelet's HTTPS port")
	fs.IntVar(&o.port, "port", 10250, "the kubelet's HTTPS port")
	fs.IntVar(&o.readOnlyPort, "read-only-port", 0, "must be 0: there is no port without authentication")
	fs.StringVar(&o.healthzAddress, "healthz-bind-address", "127.0.0.1", "`address` of /healthz")
	fs.IntVar(&o.healthzPort, "healthz-port", 10248, "port of /healthz; 0: none")
	fs.StringVar(&o.clientCAFile, "client-ca-file", "", "`file` of certificate authorities whose client certificates are accepted")
	fs.StringVar(&o.tlsCertFile, "tls-cert-file", "", "`file` with the serving certificate (default: self-signed, in --cert-dir)")
	fs.StringVar(&o.tlsKeyFile, "tls-private-key-file", "", "`file` with the serving certificate's key")
	fs.BoolVar(&o.rotateServing, "rotate-server-certificates", false, "request the serving certificate from the API server, and a new one before it ends; somebody must approve the requests")
	fs.StringSliceVar(&o.tlsCipherSuites, "tls-cipher-suites", nil, "`suites` of TLS 1.2 that are served, by their IANA names (default: Go's)")
	fs.StringVar(&o.tlsMinVersion, "tls-min-version", "VersionTLS12", "lowest TLS `version` that is served: VersionTLS12 or VersionTLS13")
	fs.BoolVar(&o.anonymousAuth, "anonymous-auth", false, "let requests without credentials be system:anonymous instead of refusing them")
	fs.BoolVar(&o.tokenWebhook, "authentication-token-webhook", true, "check bearer tokens by TokenReview")
	fs.DurationVar(&o.authnTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "how long a checked token is believed")
	fs.StringVar(&o.authorizationMode, "authorization-mode", "Webhook", "Webhook (SubjectAccessReview) or AlwaysAllow")
	fs.DurationVar(&o.authorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "how long a yes is believed")
	fs.DurationVar(&o.unauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "how long a no is believed")
	fs.DurationVar(&o.streamingTimeout, "streaming-connection-idle-timeout", 4*time.Hour, "exec, attach and port-forward end after so long without traffic")
	fs.BoolVar(&o.debuggingHandlers, "enable-debugging-handlers", true, "serve logs, exec, attach and port-forward")
	fs.BoolVar(&o.profiling, "profiling", true, "serve /debug/pprof, behind authorization")
}

// retired flags are passed by the seeds' pages, the SDN scripts or older kubeadm versions. They are taken so that those go on
// working, and each says in one line why it does nothing.
var retired = map[string]string{
	"allow-privileged":           "the API server's admission decides on privileged pods",
	"require-kubeconfig":         "--kubeconfig or --api-servers is always required",
	"network-plugin":             "the network follows from --network-mode",
	"hairpin-mode":               "services are served by proxy on the node, a pod reaches itself without hairpin",
	"cadvisor-port":              "there is no cAdvisor",
	"container-runtime":          "the runtime is Docker",
	"container-runtime-endpoint": "the runtime is Docker, see --docker-endpoint",
	"configure-cbr0":             "the network follows from --network-mode",
	"non-masquerade-cidr":        "use --non-masquerade-cidrs",
	"cgroup-driver":              "the engine's own is used",
	"kubelet-cgroups":            "its own figures are those of the cgroup in which it was started",
	"pod-sandbox-image":          "use --pod-infra-container-image",
	"runtime-cgroups":            "the engine is found by its socket",
	"fail-swap-on":               "swap is no reason not to start",
	"experimental-cri":           "the runtime is Docker",
	"docker":                     "use --docker-endpoint",
}

func addRetiredFlags(fs *pflag.FlagSet) error {
	for name, why := range retired {
		fs.String(name, "", "")
		fs.Lookup(name).NoOptDefVal = "true"
		if err := fs.MarkDeprecated(name, why); err != nil {
			return err
		}
	}
	return nil
}

// checkFile says of a file that a flag names whether it can be read.
func checkFile(flag, path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("--%s=%s: %w", flag, path, err)
	}
	return nil
}

func parsePrefixes(flag string, values []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, value := range values {
		prefix, err := parsePrefix(flag, value)
		if err != nil {
			return nil, err
		}
		out = append(out, prefix)
	}
	return out, nil
}

func parsePrefix(flag, value string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("--%s=%s: want an address range such as 10.244.0.0/16", flag, value)
	}
	return prefix.Masked(), nil
}

func parseAddr(flag, value string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(value)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--%s=%s: want an IP address such as 10.96.0.10", flag, value)
	}
	return addr, nil
}

func parseResources(flag string, values map[string]string) (v1.ResourceList, error) {
	list := v1.ResourceList{}
	for name, value := range values {
		switch v1.ResourceName(name) {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "pid":
		default:
			return nil, fmt.Errorf("--%s: %s: want cpu, memory, ephemeral-storage or pid", flag, name)
		}
		quantity, err := resource.ParseQuantity(value)
		if err != nil || quantity.Sign() < 0 {
			return nil, fmt.Errorf("--%s: %s=%s: want a quantity such as 200m or 500Mi", flag, name, value)
		}
		list[v1.ResourceName(name)] = quantity
	}
	return list, nil
}

// parseTaints reads key=value:effect and key:effect.
func parseTaints(values []string) ([]v1.Taint, error) {
	var taints []v1.Taint
	for _, value := range values {
		pair, effect, ok := strings.Cut(value, ":")
		key, val, _ := strings.Cut(pair, "=")
		switch v1.TaintEffect(effect) {
		case v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute:
		default:
			ok = false
		}
		if !ok || key == "" {
			return nil, fmt.Errorf("--register-with-taints: %s: want key=value:NoSchedule, :PreferNoSchedule or :NoExecute", value)
		}
		taints = append(taints, v1.Taint{Key: key, Value: val, Effect: v1.TaintEffect(effect)})
	}
	return taints, nil
}

func (o *options) certDirectory() string {
	if o.certDir != "" {
		return o.certDir
	}
	return filepath.Join(o.rootDir, "pki")
}
