package app

import (
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	config "k8s.io/kubelet/config/v1beta1"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/pod/plan"
)

const defaultInfraImage = "registry.k8s.io/pause:3.10"

// options contains all user settings: a KubeletConfiguration, with flags bound to its fields, and the flags without a field.
type options struct {
	config config.KubeletConfiguration
	file   daemon.ConfigFile // which file set which field of config
	fields []daemon.Binding  // the flags of config's fields

	from    fileFlags
	api     apiFlags
	node    nodeFlags
	runtime runtimeFlags
	network networkFlags
}

// fileFlags name the files to read the configuration from and write it to.
type fileFlags struct {
	config, dir string // --config, --config-dir
	writeTo     string // --write-config-to
	kubeadm     string // --kubeadm-flags
	joined      bool   // --kubeadm
}

// apiFlags say how to reach the API server.
type apiFlags struct {
	kubeconfig, bootstrapKubeconfig string
	servers                         string // --api-servers, without credentials
	certDir                         string // "": below the root directory
}

type nodeFlags struct {
	hostname string // --hostname-override
	ip       string // --node-ip
	cloud    string // --cloud-provider
	labels   map[string]string
}

type runtimeFlags struct {
	rootDir                       string
	endpoint                      string // Docker's
	infraImage                    string
	pullDeadline                  time.Duration // longest time without progress
	providersConfig, providersDir string        // for credential plugins
	dead                          plan.DeadLimits
}

type networkFlags struct {
	mode, interfaces         string
	cniConfDir               string
	cniBinDirs               []string
	clusterCIDR, serviceCIDR string
	nonMasquerade            []string
	windows, adapter         string // --windows-network, --interface
	firewall                 bool
}

// flagSet declares all flags. Flags of config's fields default to the field's current value. Names, defaults and meanings are upstream's if upstream
// has (or had) the flag.
func (o *options) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	o.addFlags(fs)
	return fs
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	daemon.AddFlags(fs)
	f, c := &fieldFlags{FlagSet: fs}, &o.config
	o.from.add(f)
	o.api.add(f, c)
	o.node.add(f, c)
	o.runtime.add(f, c)
	addLimitFlags(f, c)
	addImageFlags(f, c)
	addStaticPodFlags(f, c)
	o.network.add(f, c)
	addServerFlags(f, c)
	addGuardFlags(f, c)
	o.fields = append(f.fields, loggingFields...)
	daemon.AddForeign(fs, foreign)
}

// loggingFields are the fields whose flags package daemon declares.
var loggingFields = []daemon.Binding{
	{Path: "logging.flushFrequency", Flag: "log-flush-frequency"}, {Path: "logging.format", Flag: "logging-format"}, {Path: "logging.verbosity", Flag: "v"},
	{Path: "logging.vmodule", Flag: "vmodule"},
}

func (o *fileFlags) add(f *fieldFlags) {
	f.StringVar(&o.config, "config", "", "`file` with a KubeletConfiguration; flags override it")
	f.StringVar(&o.dir, "config-dir", "", "`directory` of drop-ins: its *.conf, in the order of their names, override --config")
	f.StringVar(&o.writeTo, "write-config-to", "", "write the resulting configuration to this `file`, and exit")
	f.BoolVar(&o.joined, "kubeadm", false, "use the files that kubeadm join writes, now or later: default for --bootstrap-kubeconfig, --kubeconfig, --config and --kubeadm-flags")
	f.StringVar(&o.kubeadm, "kubeadm-flags", "", "`file` with KUBELET_KUBEADM_ARGS=\"--name=value ...\" as kubeadm writes it; it may be created later, and flags on the command line override it")
}

func (o *apiFlags) add(f *fieldFlags, c *config.KubeletConfiguration) {
	f.StringVar(&o.bootstrapKubeconfig, "bootstrap-kubeconfig", "", "kubeconfig `file` with the credentials for requesting a client certificate when --kubeconfig does not exist; the kubelet then writes --kubeconfig")
	f.on("rotateCertificates", "rotate-certificates", &c.RotateCertificates, "request a new client certificate before the current one expires")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the API server's address and this node's credentials")
	f.StringVar(&o.servers, "api-servers", "", "API server's `address` without credentials: host:port, http://... or https://... (prefer --kubeconfig)")
	f.StringVar(&o.certDir, "cert-dir", "", "`directory` for certificates (default: pki below --root-dir)")
	f.rate("kubeAPIQPS", "kube-api-qps", c.KubeAPIQPS, "requests per second to the API server")
	f.number("kubeAPIBurst", "kube-api-burst", &c.KubeAPIBurst, "burst of requests to the API server, beyond --kube-api-qps")
	f.text("contentType", "kube-api-content-type", &c.ContentType, "content `type` of requests to the API server")
	f.rate("eventRecordQPS", "event-qps", c.EventRecordQPS, "events per second; 0: no limit")
	f.number("eventBurst", "event-burst", &c.EventBurst, "burst of events, beyond --event-qps")
}

func (o *nodeFlags) add(f *fieldFlags, c *config.KubeletConfiguration) {
	f.StringVar(&o.hostname, "hostname-override", "", "`name` of the Node (default: the host's name in lower case)")
	f.StringVar(&o.ip, "node-ip", "", "`address` of the node, or an IPv4 and an IPv6 address, separated by a comma; 0.0.0.0 or :: selects the family (default: the address of the default route)")
	f.StringToStringVar(&o.labels, "node-labels", nil, "labels to register the Node with, `key=value,...`")
	f.on("registerNode", "register-node", c.RegisterNode, "register the Node when it does not exist")
	f.value("registerWithTaints", "register-with-taints", &taintsValue{taints: &c.RegisterWithTaints}, "taints to register the Node with, `key=value:effect,...`")
	f.StringVar(&o.cloud, "cloud-provider", "", "`external`: register the Node with a taint until a cloud controller manager has initialized it and set its addresses; empty: no cloud")
	f.text("providerID", "provider-id", &c.ProviderID, "`name` of the host at its cloud provider, written to spec.providerID of the Node")
	f.number("maxPods", "max-pods", &c.MaxPods, "number of pods that may run here")
	f.number("podsPerCore", "pods-per-core", &c.PodsPerCore, "number of pods per CPU that may run here, if that is less than --max-pods; 0: no limit")
	f.pairs("kubeReserved", "kube-reserved", &c.KubeReserved, "resources kept for the agents, `cpu=200m,memory=500Mi,...`")
	f.pairs("systemReserved", "system-reserved", &c.SystemReserved, "resources kept for the system, `cpu=200m,memory=500Mi,...`")
	f.every("nodeStatusUpdateFrequency", "node-status-update-frequency", &c.NodeStatusUpdateFrequency, "how often the Node's status is computed; it is sent only when it changed")
	f.number("nodeStatusMaxImages", "node-status-max-images", c.NodeStatusMaxImages, "number of images, the largest ones, that the Node's status lists; -1: all")
	f.every("nodeStatusReportFrequency", "node-status-report-frequency", &c.NodeStatusReportFrequency, "how often an unchanged Node status is sent anyway")
	f.every("shutdownGracePeriod", "shutdown-grace-period", &c.ShutdownGracePeriod, "how long pods may take to end before the host shuts down (on Windows as a service, on Linux with systemd-logind); 0: pods stop with the host and start again with it")
	f.every("shutdownGracePeriodCriticalPods", "shutdown-grace-period-critical-pods", &c.ShutdownGracePeriodCriticalPods, "last part of --shutdown-grace-period, reserved for critical pods")
	f.every("syncFrequency", "sync-frequency", &c.SyncFrequency, "how often every pod is checked without a known change")
}

func (o *runtimeFlags) add(f *fieldFlags, c *config.KubeletConfiguration) {
	f.StringVar(&o.rootDir, "root-dir", defaultRootDir(), "`directory` for pods' volumes and files")
	f.text("podLogsDir", "pod-logs-dir", &c.PodLogsDir, "`directory` with links to containers' logs by pod; links by container go to the directory containers beside it; empty: none")
	f.text("volumePluginDir", "volume-plugin-dir", &c.VolumePluginDir, "`directory` of flexVolume drivers, as in VENDOR~DRIVER/DRIVER below it")
	f.StringVar(&o.endpoint, "docker-endpoint", "", "Docker Engine's `address`: unix://, npipe:// or tcp:// (default: $DOCKER_HOST or the platform's)")
	f.StringVar(&o.infraImage, "pod-infra-container-image", defaultInfraImage, "`image` whose container holds each pod's network")
	f.text("containerLogMaxSize", "container-log-max-size", &c.ContainerLogMaxSize, "`size` at which a container's log is rotated")
	f.number("containerLogMaxFiles", "container-log-max-files", c.ContainerLogMaxFiles, "number of log files kept per container, at least 2")
	f.every("runtimeRequestTimeout", "runtime-request-timeout", &c.RuntimeRequestTimeout, "deadline of one call to Docker, except pulls, logs and exec")
	f.DurationVar(&o.pullDeadline, "image-pull-progress-deadline", time.Minute, "abort a pull without progress for this long")
	f.StringVar(&o.providersConfig, "image-credential-provider-config", "", "`file`, or directory of files, with the CredentialProviderConfig of the plugins that provide registry logins")
	f.StringVar(&o.providersDir, "image-credential-provider-bin-dir", "", "`directory` of those plugins' programs")
	f.IntVar(&o.dead.PerContainer, "maximum-dead-containers-per-container", 1, "number of old ended containers to keep per container, in addition to the last; negative: all")
	f.IntVar(&o.dead.Total, "maximum-dead-containers", -1, "number of ended containers to keep on the node; negative: no limit")
	f.DurationVar(&o.dead.MinAge, "minimum-container-ttl-duration", 0, "minimum time to keep an ended container")
	f.value("featureGates", "feature-gates", &gatesValue{gates: &c.FeatureGates}, "`name=true,...`; CSIVolumeHealth and on Windows HyperVContainer are supported, others are logged and ignored")
}

// addLimitFlags declares the limits of pods and of this process.
func addLimitFlags(f *fieldFlags, c *config.KubeletConfiguration) {
	f.text("cgroupRoot", "cgroup-root", &c.CgroupRoot, "existing `cgroup` below which pods' cgroups are made; empty: the root (Linux)")
	f.on("cgroupsPerQOS", "cgroups-per-qos", c.CgroupsPerQOS, "make a cgroup for each QoS class and each pod (Linux)")
	f.texts("enforceNodeAllocatable", "enforce-node-allocatable", &c.EnforceNodeAllocatable, "`what` to limit to its allocatable resources: pods, or none (Linux)")
	f.long("podPidsLimit", "pod-max-pids", c.PodPidsLimit, "`number` of processes and threads of one pod; -1: no limit (Linux)")
	f.number("oomScoreAdj", "oom-score-adj", c.OOMScoreAdj, "oom_score_adj of this process, -1000 to 1000 (Linux)")
	f.long("maxOpenFiles", "max-open-files", &c.MaxOpenFiles, "`number` of files that this process may have open (Linux)")
	f.on("protectKernelDefaults", "protect-kernel-defaults", &c.ProtectKernelDefaults, "end with an error unless the kernel's settings are those of a hardened node (Linux)")
	f.on("seccompDefault", "seccomp-default", c.SeccompDefault, "use Docker's default seccomp profile for containers without a profile (Linux)")
	f.texts("allowedUnsafeSysctls", "allowed-unsafe-sysctls", &c.AllowedUnsafeSysctls, "sysctls that pods may set besides the safe ones, for example `kernel.msg*,net.core.somaxconn` (Linux)")
}

func addImageFlags(f *fieldFlags, c *config.KubeletConfiguration) {
	f.on("serializeImagePulls", "serialize-image-pulls", c.SerializeImagePulls, "pull one image at a time")
	f.number("maxParallelImagePulls", "max-parallel-image-pulls", c.MaxParallelImagePulls, "number of pulls at a time; 0: no limit")
	f.rate("registryPullQPS", "registry-qps", c.RegistryPullQPS, "pulls started per second; 0: no limit")
	f.number("registryBurst", "registry-burst", &c.RegistryBurst, "burst of pulls, beyond --registry-qps")
	f.text("imagePullCredentialsVerificationPolicy", "image-pull-credentials-verification-policy", (*string)(&c.ImagePullCredentialsVerificationPolicy), "which present images a pod may use without credentials that have pulled them: NeverVerifyPreloadedImages (those that no kubelet pulled), NeverVerify (all), NeverVerifyAllowlistedImages, AlwaysVerify (none)")
	f.texts("preloadedImagesVerificationAllowlist", "preloaded-images-verification-allowlist", &c.PreloadedImagesVerificationAllowlist, "`images` for NeverVerifyAllowlistedImages: names without tag, or with /* at the end")
}

func addStaticPodFlags(f *fieldFlags, c *config.KubeletConfiguration) {
	f.text("staticPodPath", "pod-manifest-path", &c.StaticPodPath, "`directory` of static pods' manifests, or one manifest")
	f.every("fileCheckFrequency", "file-check-frequency", &c.FileCheckFrequency, "how often --pod-manifest-path is read without a known change")
	f.text("staticPodURL", "manifest-url", &c.StaticPodURL, "`URL` of static pods' manifests")
	f.value("staticPodURLHeader", "manifest-url-header", &headersValue{headers: &c.StaticPodURLHeader}, "`header` of requests to --manifest-url, as in \"authorization: Bearer x\"; may be repeated")
	f.every("httpCheckFrequency", "http-check-frequency", &c.HTTPCheckFrequency, "how often --manifest-url is fetched")
}

func (o *networkFlags) add(f *fieldFlags, c *config.KubeletConfiguration) {
	f.texts("clusterDNS", "cluster-dns", &c.ClusterDNS, "`addresses` of the cluster's DNS (default: those of the Service kube-system/kube-dns)")
	f.text("clusterDomain", "cluster-domain", &c.ClusterDomain, "`domain` of the cluster, for example cluster.local (default: the one in the name that the cluster DNS has for the API server's Service)")
	f.text("resolvConf", "resolv-conf", c.ResolverConfig, "`file` with the host's DNS settings for pods that use them; empty: none")
	f.StringVar(&o.mode, "network-mode", "host-gateway", "host-gateway: proxy writes routes to other nodes; upstream: a router has these routes; overlay: VXLAN between nodes; cni: CNI plugins, see --cni-conf-dir; external: the existing Docker network that $CONTAINER_NETWORK names (the default if that variable is set)")
	f.StringVar(&o.interfaces, "pod-interfaces", "", "who makes pods' network interfaces: kubelet (by netlink, with rules for hostPorts; the default on Linux with --network-mode=host-gateway, upstream or overlay, and only there) or engine (on a Docker network)")
	addCNIFlags(f.FlagSet, &o.cniConfDir, &o.cniBinDirs)
	f.text("podCIDR", "pod-cidr", &c.PodCIDR, "`range` of the pods on this node, if the Node has no spec.podCIDRs")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "`range` of all pods; traffic to it keeps the pod's address (default: the private range around the Node's own, and the Nodes' ranges that the proxy reports)")
	f.StringSliceVar(&o.nonMasquerade, "non-masquerade-cidrs", nil, "further `ranges` to which traffic keeps the pod's address")
	f.StringVar(&o.serviceCIDR, "service-cidr", "", "`range` of services' addresses, which pods of Windows reach through the host (default: the cluster's ServiceCIDRs, which the proxy reports, or what cluster IPs show)")
	f.StringVar(&o.windows, "windows-network", "", "network of pods on Windows: l2bridge, transparent or nat (default: l2bridge, before Server 2019 transparent)")
	f.BoolVar(&o.firewall, "windows-firewall", true, "open the ports of this program in Windows Firewall: --port and hostPorts; false: write no rules")
	f.StringVar(&o.adapter, "interface", "", "`name` of the Windows network adapter for the pods' network (default: the one with the node's address)")
}

const defaultCNIBin = "/opt/cni/bin"

func addCNIFlags(fs *pflag.FlagSet, conf *string, bins *[]string) {
	fs.StringVar(conf, "cni-conf-dir", "/etc/cni/net.d", "`directory` of CNI network configurations, of which the first by name is used; for --network-mode=cni")
	fs.StringSliceVar(bins, "cni-bin-dir", []string{defaultCNIBin}, "`directories` of CNI plugins")
}

func addServerFlags(f *fieldFlags, c *config.KubeletConfiguration) {
	authn, authz := &c.Authentication, &c.Authorization
	f.on("enableServer", "enable-server", c.EnableServer, "serve the HTTPS port; false: no logs, exec, attach, port-forward and metrics")
	f.text("address", "address", &c.Address, "`address` of the kubelet's HTTPS port")
	f.number("port", "port", &c.Port, "the kubelet's HTTPS port")
	f.number("readOnlyPort", "read-only-port", &c.ReadOnlyPort, "must be 0: there is no port without authentication")
	f.text("healthzBindAddress", "healthz-bind-address", &c.HealthzBindAddress, "`address` of /healthz")
	f.number("healthzPort", "healthz-port", c.HealthzPort, "port of /healthz; 0: none")
	f.text("authentication.x509.clientCAFile", "client-ca-file", &authn.X509.ClientCAFile, "`file` of certificate authorities whose client certificates are accepted")
	f.text("tlsCertFile", "tls-cert-file", &c.TLSCertFile, "`file` with the serving certificate (default: self-signed, in --cert-dir)")
	f.text("tlsPrivateKeyFile", "tls-private-key-file", &c.TLSPrivateKeyFile, "`file` with the serving certificate's key")
	f.on("serverTLSBootstrap", "rotate-server-certificates", &c.ServerTLSBootstrap, "request the serving certificate from the API server, and a new one before it expires; a controller or an administrator must approve the requests (kubectl certificate approve)")
	f.texts("tlsCipherSuites", "tls-cipher-suites", &c.TLSCipherSuites, "accepted cipher `suites` of TLS 1.2, by their IANA names (default: Go's)")
	f.text("tlsMinVersion", "tls-min-version", &c.TLSMinVersion, "lowest accepted TLS `version`: VersionTLS12 or VersionTLS13")
	f.on("authentication.anonymous.enabled", "anonymous-auth", authn.Anonymous.Enabled, "treat requests without credentials as system:anonymous instead of refusing them")
	f.on("authentication.webhook.enabled", "authentication-token-webhook", authn.Webhook.Enabled, "check bearer tokens with TokenReview")
	f.every("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", &authn.Webhook.CacheTTL, "how long the result of a token check is cached")
	f.text("authorization.mode", "authorization-mode", (*string)(&authz.Mode), "Webhook (SubjectAccessReview) or AlwaysAllow")
	f.every("authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl", &authz.Webhook.CacheAuthorizedTTL, "how long a granted authorization is cached")
	f.every("authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl", &authz.Webhook.CacheUnauthorizedTTL, "how long a refused authorization is cached")
	f.every("streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", &c.StreamingConnectionIdleTimeout, "how long exec, attach and port-forward may be idle before they end")
	f.on("enableDebuggingHandlers", "enable-debugging-handlers", c.EnableDebuggingHandlers, "serve logs, exec, attach and port-forward")
	f.on("enableProfilingHandler", "profiling", c.EnableProfilingHandler, "serve /debug/pprof, behind authorization")
	f.on("enableContentionProfiling", "contention-profiling", &c.EnableContentionProfiling, "record for /debug/pprof/block where goroutines wait; with --profiling")
}

// addGuardFlags declares the resources that the node keeps free, and how.
func addGuardFlags(f *fieldFlags, c *config.KubeletConfiguration) {
	f.value("evictionHard", "eviction-hard", (*leastValue)(&c.EvictionHard), "thresholds of free resources below which pods are evicted immediately, `memory.available<100Mi,nodefs.available<10%,...`; empty: none")
	f.value("evictionSoft", "eviction-soft", (*leastValue)(&c.EvictionSoft), "thresholds of free resources below which pods are evicted after --eviction-soft-grace-period, `memory.available<1.5Gi,...`")
	f.pairs("evictionSoftGracePeriod", "eviction-soft-grace-period", &c.EvictionSoftGracePeriod, "how long a soft threshold must be crossed before pods are evicted, `memory.available=90s,...`")
	f.pairs("evictionMinimumReclaim", "eviction-minimum-reclaim", &c.EvictionMinimumReclaim, "how much to free beyond the threshold, `imagefs.available=2Gi,...`")
	f.every("evictionPressureTransitionPeriod", "eviction-pressure-transition-period", &c.EvictionPressureTransitionPeriod, "how long the Node's pressure condition stays after the pressure was last observed")
	f.number("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", &c.EvictionMaxPodGracePeriod, "maximum `seconds` that a pod gets to stop when a soft threshold is crossed")
	f.number("imageGCHighThresholdPercent", "image-gc-high-threshold", c.ImageGCHighThresholdPercent, "disk usage in `percent` of the images' file system above which unused images are removed; 100: never")
	f.number("imageGCLowThresholdPercent", "image-gc-low-threshold", c.ImageGCLowThresholdPercent, "disk usage in `percent` of the images' file system down to which unused images are removed")
	f.every("imageMinimumGCAge", "minimum-image-ttl-duration", &c.ImageMinimumGCAge, "minimum time to keep an image after it was first seen")
	f.every("imageMaximumGCAge", "maximum-image-ttl-duration", &c.ImageMaximumGCAge, "maximum time to keep an unused image; 0: no limit")
}

// certDirectory is the directory of certificates.
func (o *options) certDirectory() string {
	if o.api.certDir != "" {
		return o.api.certDir
	}
	return filepath.Join(o.runtime.rootDir, "pki")
}
