package app

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/winkube/winkube/pkg/admit"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/hcs"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/kubelet"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod/source"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/pod/worker"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/server"
)

// settings checks every flag and says what they mean together. It reads the host and changes nothing on it.
func (o *options) settings(facts host.Facts) (kubelet.Config, error) {
	cfg := kubelet.Config{Facts: facts, Platform: platformOf(facts), RootDir: o.rootDir, Events: kubeclient.EventLimit{QPS: o.eventQPS, Burst: o.eventBurst},
		NodeName: strings.ToLower(strings.TrimSpace(o.hostnameOverride))}
	if cfg.NodeName == "" {
		cfg.NodeName = facts.Hostname
	}
	if problems := validation.IsDNS1123Subdomain(cfg.NodeName); len(problems) > 0 {
		return cfg, fmt.Errorf("--hostname-override=%s: want a DNS name in lower case, as in node1 or node1.example.com", cfg.NodeName)
	}
	if err := checkBuild(facts); err != nil {
		return cfg, err
	}
	if o.eventQPS < 0 || o.eventBurst < 1 {
		return cfg, fmt.Errorf("--event-qps=%g --event-burst=%d: want 0 or more, and at least 1", o.eventQPS, o.eventBurst)
	}
	if (o.kubeconfig == "") == (o.apiServers == "") {
		return cfg, fmt.Errorf("want exactly one of --kubeconfig and --api-servers")
	}
	for _, set := range []func(*kubelet.Config) error{o.setFiles, o.setNode, o.setGuard, o.setEngine, o.setCgroups, o.setImages, o.setNetwork, o.setPods, o.setServer} {
		if err := set(&cfg); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

func (o *options) setFiles(cfg *kubelet.Config) error {
	if o.bootstrapKubeconfig == "" {
		if err := checkFile("kubeconfig", o.kubeconfig); err != nil {
			return err
		}
	} else if o.kubeconfig == "" {
		return fmt.Errorf("--bootstrap-kubeconfig=%s: want --kubeconfig with it: the file that is made", o.bootstrapKubeconfig)
	}
	for flag, path := range map[string]string{"client-ca-file": o.clientCAFile, "tls-cert-file": o.tlsCertFile,
		"tls-private-key-file": o.tlsKeyFile, "resolv-conf": o.resolvConf,
		"image-credential-provider-config": o.providersConfig, "image-credential-provider-bin-dir": o.providersDir} {
		if err := checkFile(flag, path); err != nil {
			return err
		}
	}
	if o.rootDir == "" {
		return fmt.Errorf("--root-dir: want a directory")
	}
	if (o.tlsCertFile == "") != (o.tlsKeyFile == "") {
		return fmt.Errorf("want both or neither of --tls-cert-file and --tls-private-key-file")
	}
	return nil
}

func (o *options) setNode(cfg *kubelet.Config) error {
	cfg.Node.Name, cfg.Node.Hostname = cfg.NodeName, cfg.NodeName
	cfg.Node.Labels, cfg.Node.Unregistered, cfg.Node.MaxPods = o.nodeLabels, !o.registerNode, o.maxPods
	cfg.Node.PodsPerCore = o.podsPerCore
	if cfg.Shutdown = o.shutdown; cfg.Shutdown.Check() != nil {
		return fmt.Errorf("time before a shutdown: %w", cfg.Shutdown.Check())
	}
	cfg.Node.UpdateFrequency, cfg.Node.ReportFrequency = o.nodeStatusFrequency, o.statusReportFrequency
	cfg.Node.Port = int32(o.port)
	if o.statusMaxImages < -1 {
		return fmt.Errorf("--node-status-max-images=%d: want 0 or more, or -1 for all", o.statusMaxImages)
	}
	if lease := o.file.content.NodeLeaseDurationSeconds; lease < 0 {
		return fmt.Errorf("nodeLeaseDurationSeconds: %d: want 1 or more, or 0 for 40", lease)
	}
	cfg.Node.MaxImages, cfg.Node.LeaseDuration = &o.statusMaxImages, time.Duration(o.file.content.NodeLeaseDurationSeconds)*time.Second
	if o.maxPods < 1 {
		return fmt.Errorf("--max-pods=%d: want at least 1", o.maxPods)
	}
	if o.podsPerCore < 0 {
		return fmt.Errorf("--pods-per-core=%d: want at least 1, or 0 for no such limit", o.podsPerCore)
	}
	var err error
	if cfg.Node.KubeReserved, err = parseResources("kube-reserved", o.kubeReserved); err != nil {
		return err
	}
	if cfg.Node.SystemReserved, err = parseResources("system-reserved", o.systemReserved); err != nil {
		return err
	}
	if cfg.Node.Taints, err = parseTaints(o.taints); err != nil {
		return err
	}
	if o.cloudProvider != "" && o.cloudProvider != "external" {
		return fmt.Errorf("--cloud-provider=%s: no kubelet talks to a cloud itself any more: want external, or nothing", o.cloudProvider)
	}
	cfg.Node.ExternalCloud, cfg.Node.ProviderID, cfg.Node.NodeIP = o.cloudProvider == "external", o.providerID, o.nodeIP
	overrides := []string{""}
	if o.nodeIP != "" {
		overrides = strings.Split(o.nodeIP, ",")
	}
	for _, override := range overrides {
		found, err := host.NodeAddress(override)
		if err != nil {
			return fmt.Errorf("--node-ip=%s: %w", o.nodeIP, err)
		}
		cfg.NodeIPs = append(cfg.NodeIPs, found...)
	}
	return nil
}

func (o *options) setEngine(cfg *kubelet.Config) error {
	size, err := resource.ParseQuantity(o.logMaxSize)
	if err != nil || size.Value() <= 0 {
		return fmt.Errorf("--container-log-max-size=%s: want a size such as 10Mi", o.logMaxSize)
	}
	if o.logMaxFiles < 2 {
		return fmt.Errorf("--container-log-max-files=%d: want at least 2", o.logMaxFiles)
	}
	if o.infraImage == "" && cfg.Platform.SharedNetwork {
		return fmt.Errorf("--pod-infra-container-image: want an image name: pods here share a network that its container holds")
	}
	cfg.Engine = docker.Config{
		Host: o.dockerEndpoint, Node: cfg.NodeName, Boot: cfg.Facts.BootID, Platform: cfg.Platform, CPUs: cfg.Facts.CPUs, InfraImage: o.infraImage, Hash: podspec.Hash,
		LogMaxSize: size.Value(), LogMaxFiles: o.logMaxFiles, LogsDir: o.podLogsDir, CgroupParent: o.cgroupRoot,
		CallTimeout: o.runtimeTimeout, PullProgressDeadline: o.pullDeadline, SeccompRoot: filepath.Join(o.rootDir, "seccomp"), SeccompDefault: o.seccompDefault, CredentialSpecs: hcs.KeepCredentialSpecs,
	}
	if cfg.Sysctls, err = admit.NewSysctls(cfg.Facts.KernelVersion, o.unsafeSysctls); err != nil {
		return fmt.Errorf("--allowed-unsafe-sysctls: %w", err)
	}
	if _, err := docker.New(cfg.Engine); err != nil {
		return fmt.Errorf("--docker-endpoint=%s: %w", o.dockerEndpoint, err)
	}
	return nil
}

// setCgroups comes after setNode, which reads the reservations.
func (o *options) setCgroups(cfg *kubelet.Config) error {
	if o.oomScoreAdj < -1000 || o.oomScoreAdj > 1000 {
		return fmt.Errorf("--oom-score-adj=%d: want a score from -1000 to 1000", o.oomScoreAdj)
	}
	if o.podMaxPids == 0 || o.podMaxPids < -1 {
		return fmt.Errorf("--pod-max-pids=%d: want a number above 0, or -1 for no limit", o.podMaxPids)
	}
	enforce := false
	for _, what := range o.enforceAllocatable {
		switch {
		case what == "pods":
			enforce = true
		case what == "none" && len(o.enforceAllocatable) == 1, what == "":
		default:
			return fmt.Errorf("--enforce-node-allocatable=%s: want pods, or none alone: services of the system are limited by whoever starts them, "+
				"as by MemoryMax= of a systemd unit", strings.Join(o.enforceAllocatable, ","))
		}
	}
	if cfg.Platform.OS != "linux" {
		return nil
	}
	if !o.cgroupsPerQoS {
		if o.podMaxPids > 0 {
			return fmt.Errorf("--pod-max-pids=%d: want --cgroups-per-qos with it: a pod without a cgroup cannot be limited", o.podMaxPids)
		}
		return nil
	}
	facts := cfg.Facts
	cfg.Cgroups = kubelet.CgroupConfig{PerQoS: true, Root: o.cgroupRoot, MaxPids: max(o.podMaxPids, 0), Enforce: enforce, HugePages: facts.HugePages,
		Capacity: v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity(int64(facts.CPUs)*1000, resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(int64(facts.Memory), resource.BinarySI),
		}, Reserved: v1.ResourceList{}}
	if load, err := host.ReadLoad(); err == nil && load.MaxTasks > 0 {
		cfg.Cgroups.Capacity["pid"] = *resource.NewQuantity(load.MaxTasks, resource.DecimalSI)
	}
	for _, list := range []v1.ResourceList{cfg.Node.KubeReserved, cfg.Node.SystemReserved} {
		for name, q := range list {
			sum := cfg.Cgroups.Reserved[name]
			sum.Add(q)
			cfg.Cgroups.Reserved[name] = sum
		}
	}
	return nil
}

func (o *options) setNetwork(cfg *kubelet.Config) error {
	cfg.Network = network.Config{Mode: network.Mode(o.networkMode), Platform: cfg.Platform, External: os.Getenv("CONTAINER_NETWORK"), NodeIPs: cfg.NodeIPs}
	if cfg.Network.External != "" {
		cfg.Network.Mode = network.External
	}
	var err error
	if cfg.Network.ConfDir, err = filepath.Abs(o.cniConfDir); err != nil {
		return fmt.Errorf("--cni-conf-dir=%s: %w", o.cniConfDir, err)
	}
	for _, dir := range o.cniBinDirs {
		bin, err := filepath.Abs(dir)
		if err != nil {
			return fmt.Errorf("--cni-bin-dir=%s: %w", dir, err)
		}
		cfg.CNIBin = append(cfg.CNIBin, bin)
	}
	if cfg.PodCIDRs, err = parsePrefixes("pod-cidr", split(o.podCIDR)); err != nil {
		return err
	}
	if cfg.Network.NonMasquerade, err = parsePrefixes("cluster-cidr", split(o.clusterCIDR)); err != nil {
		return err
	}
	more, err := parsePrefixes("non-masquerade-cidrs", o.nonMasquerade)
	if err != nil {
		return err
	}
	cfg.Network.NonMasquerade = append(cfg.Network.NonMasquerade, more...)
	if cfg.Network.Services, err = parsePrefixes("service-cidr", split(o.serviceCIDR)); err != nil {
		return err
	}
	cfg.Network.Windows, cfg.Network.Adapter = network.WindowsNetwork(o.windowsNetwork), o.adapter
	if err := cfg.Network.CheckWindows(); cfg.Platform.OS == "windows" && err != nil {
		return err
	}
	if _, err := network.Plan(cfg.Network, network.Facts{}); err != nil {
		return fmt.Errorf("--network-mode=%s: %w", o.networkMode, err)
	}
	return nil
}

func (o *options) setPods(cfg *kubelet.Config) error {
	var servers []netip.Addr
	for _, value := range o.clusterDNS {
		addr, err := parseAddr("cluster-dns", value)
		if err != nil {
			return err
		}
		servers = append(servers, addr)
	}
	cfg.Resolver = start.Config{
		NodeName: cfg.NodeName, Platform: cfg.Platform, ClusterDNS: servers, ClusterDomain: strings.Trim(o.clusterDomain, "."), ResolvConf: o.resolvConf,
		DockerConfigs:  o.dockerConfigs(),
		SerializePulls: o.serializePulls, MaxParallelPulls: o.maxParallelPulls, PullQPS: o.registryQPS, PullBurst: o.registryBurst,
	}
	header, err := parseHeaders("manifest-url-header", o.manifestURLHeader)
	if err != nil {
		return err
	}
	cfg.Source = source.Config{NodeName: cfg.NodeName, Path: o.manifestPath, PathPeriod: o.fileFrequency,
		URL: o.manifestURL, URLHeader: header, URLPeriod: o.manifestURLFrequency}
	cfg.Pods = worker.Config{Platform: cfg.Platform, Resync: o.syncFrequency, Dead: &o.dead}
	return nil
}

func (o *options) setServer(cfg *kubelet.Config) error {
	if o.readOnlyPort != 0 {
		return fmt.Errorf("--read-only-port=%d: want 0: there is no port without authentication", o.readOnlyPort)
	}
	for flag, port := range map[string]int{"port": o.port, "healthz-port": o.healthzPort} {
		if port < 0 || port > 65535 {
			return fmt.Errorf("--%s=%d: want a port from 0 to 65535", flag, port)
		}
	}
	address, err := parseAddr("address", o.address)
	if err != nil {
		return err
	}
	healthz, err := parseAddr("healthz-bind-address", o.healthzAddress)
	if err != nil {
		return err
	}
	if o.authorizationMode != string(server.Webhook) && o.authorizationMode != string(server.AlwaysAllow) {
		return fmt.Errorf("--authorization-mode=%s: want Webhook or AlwaysAllow", o.authorizationMode)
	}
	if o.healthzPort != 0 {
		cfg.Healthz = netip.AddrPortFrom(healthz, uint16(o.healthzPort)).String()
	}
	suites, version, err := parseTLS(o.tlsCipherSuites, o.tlsMinVersion)
	if err != nil {
		return err
	}
	if o.rotateServing && o.tlsCertFile != "" {
		return fmt.Errorf("--rotate-server-certificates: want it or --tls-cert-file, not both")
	}
	cfg.RotateServing = o.rotateServing
	cfg.Server = server.Config{
		Address: netip.AddrPortFrom(address, uint16(o.port)).String(), NodeName: cfg.NodeName,
		TLS:               server.TLS{CertFile: o.tlsCertFile, KeyFile: o.tlsKeyFile, CertDir: o.certDirectory(), MinVersion: version, CipherSuites: suites},
		Authentication:    server.Authentication{ClientCAFile: o.clientCAFile, Webhook: o.tokenWebhook, CacheTTL: o.authnTTL, Anonymous: o.anonymousAuth},
		Authorization:     server.Authorization{Mode: server.Mode(o.authorizationMode), AuthorizedTTL: o.authorizedTTL, UnauthorizedTTL: o.unauthorizedTTL},
		StreamIdleTimeout: o.streamingTimeout, Debugging: o.debuggingHandlers, Profiling: o.profiling, DebugFlags: o.debuggingHandlers,
	}
	file := &o.file.content
	if off := file.EnableDebugFlagsHandler; off != nil && !*off {
		cfg.Server.DebugFlags = false
	}
	if on := file.EnableSystemLogHandler; on == nil || *on {
		cfg.Logs.Dir = systemLogs
	}
	cfg.Logs.Query = file.EnableSystemLogQuery != nil && *file.EnableSystemLogQuery
	return nil
}

// systemLogs is the directory of logs, of which Windows has one where somebody made it, on the drive that we run on.
const systemLogs = "/var/log"

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// parseTLS reads suites by their IANA names. Those that Go calls insecure are taken, as upstream does, for clients that have no better.
func parseTLS(names []string, least string) (suites []uint16, version uint16, err error) {
	switch least {
	case "VersionTLS12", "":
		version = tls.VersionTLS12
	case "VersionTLS13":
		version = tls.VersionTLS13
	default:
		return nil, 0, fmt.Errorf("--tls-min-version=%s: want VersionTLS12 or VersionTLS13", least)
	}
	for _, name := range names {
		found := false
		for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
			if suite.Name == name {
				suites, found = append(suites, suite.ID), true
			}
		}
		if !found {
			return nil, 0, fmt.Errorf("--tls-cipher-suites: %s: want names such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name)
		}
	}
	return suites, version, nil
}
