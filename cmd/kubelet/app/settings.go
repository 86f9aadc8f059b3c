package app

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	config "k8s.io/kubelet/config/v1beta1"

	"github.com/winkube/winkube/pkg/admit"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/hcs"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/kubelet"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/pod/source"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/pod/worker"
	"github.com/winkube/winkube/pkg/podcgroup"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/server"
	"github.com/winkube/winkube/pkg/shutdown"
)

// settings derives each part's Config from the relevant configuration fields and the host's facts.
type settings struct {
	*options
	c *config.KubeletConfiguration // that of options
	kubelet.Config
}

// settings checks the whole configuration and makes the parts' Configs of it. It reads the host and changes nothing on it.
func (o *options) settings(facts host.Facts) (kubelet.Config, error) {
	c := &o.config
	s := &settings{options: o, c: c}
	if err := o.file.Refused(foreign, c); err != nil {
		return s.Config, err
	}
	s.Machine = kubelet.Machine{NodeName: strings.ToLower(strings.TrimSpace(o.node.hostname)), Facts: facts, Platform: platformOf(facts), RootDir: o.runtime.rootDir}
	s.Events = kubeclient.EventLimit{QPS: float32(*c.EventRecordQPS), Burst: int(c.EventBurst)}
	s.VolumeHealth = c.FeatureGates[kubelet.GateVolumeHealth]
	s.Platform.HyperVContainer = c.FeatureGates[kubelet.GateHyperV] && facts.OS == "windows"
	if s.NodeName == "" {
		s.NodeName = facts.Hostname
	}
	if problems := validation.IsDNS1123Subdomain(s.NodeName); len(problems) > 0 {
		return s.Config, fmt.Errorf("--hostname-override=%s: want a DNS name in lower case, as in node1 or node1.example.com", s.NodeName)
	}
	if err := checkBuild(facts); err != nil {
		return s.Config, err
	}
	if *c.EventRecordQPS < 0 || c.EventBurst < 1 {
		return s.Config, fmt.Errorf("--event-qps=%d --event-burst=%d: want 0 or more, and at least 1", *c.EventRecordQPS, c.EventBurst)
	}
	if (o.api.kubeconfig == "") == (o.api.servers == "") {
		return s.Config, fmt.Errorf("want exactly one of --kubeconfig and --api-servers")
	}
	for _, make := range []func() error{s.files, s.makeNode, s.makeShutdown, s.makeGuard, s.makeEngine, s.makeCgroups, s.makeImages, s.makeNetwork, s.makePods, s.makeServer} {
		if err := make(); err != nil {
			return s.Config, err
		}
	}
	return s.Config, nil
}

// checkKernel is the error of --protect-kernel-defaults. sys is /proc/sys.
func (o *options) checkKernel(system string, sys fs.FS) error {
	if !o.config.ProtectKernelDefaults || system != "linux" {
		return nil
	}
	if err := host.CheckKernelDefaults(sys); err != nil {
		return fmt.Errorf("--protect-kernel-defaults=true: %w", err)
	}
	return nil
}

func (s *settings) files() error {
	if s.api.bootstrapKubeconfig == "" {
		if err := checkFile("kubeconfig", s.api.kubeconfig); err != nil {
			return err
		}
	} else if s.api.kubeconfig == "" {
		return fmt.Errorf("--bootstrap-kubeconfig=%s: want --kubeconfig too: the file that the kubelet then writes", s.api.bootstrapKubeconfig)
	}
	for flag, path := range map[string]string{"client-ca-file": s.c.Authentication.X509.ClientCAFile, "tls-cert-file": s.c.TLSCertFile,
		"tls-private-key-file": s.c.TLSPrivateKeyFile, "resolv-conf": *s.c.ResolverConfig,
		"image-credential-provider-config": s.runtime.providersConfig, "image-credential-provider-bin-dir": s.runtime.providersDir} {
		if err := checkFile(flag, path); err != nil {
			return err
		}
	}
	if s.runtime.rootDir == "" {
		return fmt.Errorf("--root-dir: want a directory")
	}
	if s.c.VolumePluginDir != "" {
		dir, err := filepath.Abs(s.c.VolumePluginDir)
		if err != nil {
			return fmt.Errorf("--volume-plugin-dir=%s: %w", s.c.VolumePluginDir, err)
		}
		s.FlexDir = dir
	}
	if (s.c.TLSCertFile == "") != (s.c.TLSPrivateKeyFile == "") {
		return fmt.Errorf("want both or neither of --tls-cert-file and --tls-private-key-file")
	}
	return nil
}

func (s *settings) makeNode() error {
	s.Node.Name, s.Node.Hostname = s.NodeName, s.NodeName
	s.Node.Labels, s.Node.Unregistered, s.Node.MaxPods = s.node.labels, !*s.c.RegisterNode, int(s.c.MaxPods)
	s.Node.PodsPerCore = int(s.c.PodsPerCore)
	s.Node.UpdateFrequency, s.Node.ReportFrequency = s.c.NodeStatusUpdateFrequency.Duration, s.c.NodeStatusReportFrequency.Duration
	s.Node.Port = s.c.Port
	if *s.c.NodeStatusMaxImages < -1 {
		return fmt.Errorf("--node-status-max-images=%d: want 0 or more, or -1 for all", *s.c.NodeStatusMaxImages)
	}
	if lease := s.c.NodeLeaseDurationSeconds; lease < 0 {
		return fmt.Errorf("nodeLeaseDurationSeconds: %d: want 1 or more, or 0 for 40", lease)
	}
	images := int(*s.c.NodeStatusMaxImages)
	s.Node.MaxImages, s.Node.LeaseDuration = &images, time.Duration(s.c.NodeLeaseDurationSeconds)*time.Second
	if s.c.MaxPods < 1 {
		return fmt.Errorf("--max-pods=%d: want at least 1", s.c.MaxPods)
	}
	if s.c.PodsPerCore < 0 {
		return fmt.Errorf("--pods-per-core=%d: want at least 1, or 0 for no such limit", s.c.PodsPerCore)
	}
	var err error
	if s.Node.KubeReserved, err = parseResources("kube-reserved", s.c.KubeReserved); err != nil {
		return err
	}
	if s.Node.SystemReserved, err = parseResources("system-reserved", s.c.SystemReserved); err != nil {
		return err
	}
	for _, taint := range s.c.RegisterWithTaints { // from a file
		if err := checkTaint(taint); err != nil {
			return fmt.Errorf("registerWithTaints: %s: %w", taint.ToString(), err)
		}
	}
	s.Node.Taints = s.c.RegisterWithTaints
	if s.node.cloud != "" && s.node.cloud != "external" {
		return fmt.Errorf("--cloud-provider=%s: kubelets no longer have cloud providers: want external, or empty", s.node.cloud)
	}
	s.Node.ExternalCloud, s.Node.ProviderID, s.Node.NodeIP = s.node.cloud == "external", s.c.ProviderID, s.node.ip
	overrides := []string{""}
	if s.node.ip != "" {
		overrides = strings.Split(s.node.ip, ",")
	}
	for _, override := range overrides {
		found, err := host.NodeAddress(override)
		if err != nil {
			return fmt.Errorf("--node-ip=%s: %w", s.node.ip, err)
		}
		s.NodeIPs = append(s.NodeIPs, found...)
	}
	return nil
}

func (s *settings) makeShutdown() error {
	s.Shutdown = shutdown.Config{Grace: s.c.ShutdownGracePeriod.Duration, Critical: s.c.ShutdownGracePeriodCriticalPods.Duration}
	for _, class := range s.c.ShutdownGracePeriodByPodPriority {
		s.Shutdown.ByPriority = append(s.Shutdown.ByPriority, shutdown.Class{Priority: class.Priority, Grace: time.Duration(class.ShutdownGracePeriodSeconds) * time.Second})
	}
	if err := s.Shutdown.Check(); err != nil {
		return fmt.Errorf("time before a shutdown: %w", err)
	}
	return nil
}

func (s *settings) makeEngine() error {
	size, err := resource.ParseQuantity(s.c.ContainerLogMaxSize)
	if err != nil || size.Value() <= 0 {
		return fmt.Errorf("--container-log-max-size=%s: want a size such as 10Mi", s.c.ContainerLogMaxSize)
	}
	if *s.c.ContainerLogMaxFiles < 2 {
		return fmt.Errorf("--container-log-max-files=%d: want at least 2", *s.c.ContainerLogMaxFiles)
	}
	if s.runtime.infraImage == "" && s.Platform.SharedNetwork {
		return fmt.Errorf("--pod-infra-container-image: want the name of the image whose container holds each pod's network")
	}
	s.Engine = docker.Config{
		Host: s.runtime.endpoint, Node: s.NodeName, Boot: s.Facts.BootID, Platform: s.Platform, CPUs: s.Facts.CPUs, InfraImage: s.runtime.infraImage, Hash: podspec.Hash,
		LogMaxSize: size.Value(), LogMaxFiles: int(*s.c.ContainerLogMaxFiles), LogsDir: s.c.PodLogsDir, CgroupParent: s.c.CgroupRoot,
		CallTimeout: s.c.RuntimeRequestTimeout.Duration, PullProgressDeadline: s.runtime.pullDeadline, SeccompRoot: filepath.Join(s.runtime.rootDir, "seccomp"), SeccompDefault: *s.c.SeccompDefault, CredentialSpecs: hcs.KeepCredentialSpecs,
	}
	if s.Sysctls, err = admit.NewSysctls(s.Facts.KernelVersion, s.c.AllowedUnsafeSysctls); err != nil {
		return fmt.Errorf("--allowed-unsafe-sysctls: %w", err)
	}
	if _, err := docker.New(s.Engine); err != nil {
		return fmt.Errorf("--docker-endpoint=%s: %w", s.runtime.endpoint, err)
	}
	return nil
}

// makeCgroups runs after makeNode, which reads the reservations.
func (s *settings) makeCgroups() error {
	if *s.c.OOMScoreAdj < -1000 || *s.c.OOMScoreAdj > 1000 {
		return fmt.Errorf("--oom-score-adj=%d: want a score from -1000 to 1000", *s.c.OOMScoreAdj)
	}
	if *s.c.PodPidsLimit == 0 || *s.c.PodPidsLimit < -1 {
		return fmt.Errorf("--pod-max-pids=%d: want a number above 0, or -1 for no limit", *s.c.PodPidsLimit)
	}
	if swap := s.c.MemorySwap.SwapBehavior; swap == "NoSwap" && s.Platform.OS == "linux" && s.Facts.Swap > 0 && !(s.Facts.CgroupV2 && *s.c.CgroupsPerQOS) {
		return fmt.Errorf("memorySwap.swapBehavior: %s: want no value, or a host without swap, or one with cgroup v2 and --cgroups-per-qos: containers without a memory limit may use swap", swap)
	}
	if s.c.MaxOpenFiles < 1 {
		return fmt.Errorf("--max-open-files=%d: want at least 1", s.c.MaxOpenFiles)
	}
	enforce := false
	for _, what := range s.c.EnforceNodeAllocatable {
		switch {
		case what == "pods":
			enforce = true
		case what == "none" && len(s.c.EnforceNodeAllocatable) == 1, what == "":
		default:
			return fmt.Errorf("--enforce-node-allocatable=%s: want pods, or none alone: limit system services where they are started, "+
				"for example with MemoryMax= in a systemd unit", strings.Join(s.c.EnforceNodeAllocatable, ","))
		}
	}
	if s.Platform.OS != "linux" {
		return nil
	}
	if !*s.c.CgroupsPerQOS {
		if *s.c.PodPidsLimit > 0 {
			return fmt.Errorf("--pod-max-pids=%d: also needs --cgroups-per-qos: a pod without a cgroup cannot be limited", *s.c.PodPidsLimit)
		}
		return nil
	}
	facts := s.Facts
	s.Cgroups = &podcgroup.Config{Root: s.c.CgroupRoot, Driver: s.c.CgroupDriver, MaxPids: max(*s.c.PodPidsLimit, 0), Enforce: enforce, HugePages: facts.HugePages,
		Note: podcgroup.NoteFileIn(s.runtime.rootDir),
		Capacity: v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity(int64(facts.CPUs)*1000, resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(int64(facts.Memory), resource.BinarySI),
		}, Reserved: v1.ResourceList{}}
	if load, err := host.ReadLoad(); err == nil && load.MaxTasks > 0 {
		s.Cgroups.Capacity["pid"] = *resource.NewQuantity(load.MaxTasks, resource.DecimalSI)
	}
	for _, list := range []v1.ResourceList{s.Node.KubeReserved, s.Node.SystemReserved} {
		for name, q := range list {
			sum := s.Cgroups.Reserved[name]
			sum.Add(q)
			s.Cgroups.Reserved[name] = sum
		}
	}
	return nil
}

func (s *settings) makeNetwork() error {
	s.Network = network.Config{Mode: network.Mode(s.network.mode), Platform: s.Platform, External: os.Getenv("CONTAINER_NETWORK"), NodeIPs: s.NodeIPs,
		UplinkFile: filepath.Join(s.runtime.rootDir, "uplink.json")}
	if s.Network.External != "" {
		s.Network.Mode = network.External
	}
	var err error
	if s.Network.ConfDir, err = filepath.Abs(s.network.cniConfDir); err != nil {
		return fmt.Errorf("--cni-conf-dir=%s: %w", s.network.cniConfDir, err)
	}
	for _, dir := range s.network.cniBinDirs {
		bin, err := filepath.Abs(dir)
		if err != nil {
			return fmt.Errorf("--cni-bin-dir=%s: %w", dir, err)
		}
		s.CNIBin = append(s.CNIBin, bin)
	}
	if s.PodCIDRs, err = parsePrefixes("pod-cidr", split(s.c.PodCIDR)); err != nil {
		return err
	}
	if s.Network.NonMasquerade, err = parsePrefixes("cluster-cidr", split(s.network.clusterCIDR)); err != nil {
		return err
	}
	more, err := parsePrefixes("non-masquerade-cidrs", s.network.nonMasquerade)
	if err != nil {
		return err
	}
	s.Network.NonMasquerade = append(s.Network.NonMasquerade, more...)
	if s.Network.Services, err = parsePrefixes("service-cidr", split(s.network.serviceCIDR)); err != nil {
		return err
	}
	if err := s.Network.ChooseInterfaces(s.network.interfaces); err != nil {
		return fmt.Errorf("--pod-interfaces=%s: %w", s.network.interfaces, err)
	}
	s.Network.Windows, s.Network.Adapter = network.WindowsNetwork(s.network.windows), s.network.adapter
	if err := s.Network.CheckWindows(); err != nil {
		return err
	}
	if _, err := network.Plan(s.Network, network.Facts{}); err != nil {
		return fmt.Errorf("--network-mode=%s: %w", s.network.mode, err)
	}
	return nil
}

func (s *settings) makePods() error {
	var servers []netip.Addr
	for _, value := range s.c.ClusterDNS {
		addr, err := parseAddr("cluster-dns", value)
		if err != nil {
			return err
		}
		servers = append(servers, addr)
	}
	s.Resolver = start.Config{
		NodeName: s.NodeName, Platform: s.Platform, ClusterDNS: servers, ClusterDomain: strings.Trim(s.c.ClusterDomain, "."), ResolvConf: *s.c.ResolverConfig,
		DockerConfigs:  dockerConfigs(s.runtime.rootDir),
		SerializePulls: *s.c.SerializeImagePulls, MaxParallelPulls: int(*s.c.MaxParallelImagePulls), PullQPS: float32(*s.c.RegistryPullQPS), PullBurst: int(s.c.RegistryBurst),
	}
	if err := checkHeaders(s.c.StaticPodURLHeader); err != nil {
		return err
	}
	s.Source = source.Config{NodeName: s.NodeName, Path: s.c.StaticPodPath, PathPeriod: s.c.FileCheckFrequency.Duration,
		URL: s.c.StaticPodURL, URLHeader: s.c.StaticPodURLHeader, URLPeriod: s.c.HTTPCheckFrequency.Duration}
	s.Pods = worker.Config{Platform: s.Platform, Resync: s.c.SyncFrequency.Duration, Dead: &s.runtime.dead}
	if most := s.c.CrashLoopBackOff.MaxContainerRestartPeriod; most != nil {
		if most.Duration < time.Second || most.Duration > plan.CrashBackOffMax {
			return fmt.Errorf("crashLoopBackOff.maxContainerRestartPeriod: %s: want 1s to %s", most.Duration, plan.CrashBackOffMax)
		}
		s.Pods.CrashBackOff = most.Duration
	}
	return nil
}

func (s *settings) makeServer() error {
	if s.c.ReadOnlyPort != 0 {
		return fmt.Errorf("--read-only-port=%d: want 0: there is no port without authentication", s.c.ReadOnlyPort)
	}
	for flag, port := range map[string]int32{"port": s.c.Port, "healthz-port": *s.c.HealthzPort} {
		if port < 0 || port > 65535 {
			return fmt.Errorf("--%s=%d: want a port from 0 to 65535", flag, port)
		}
	}
	address, err := parseAddr("address", s.c.Address)
	if err != nil {
		return err
	}
	healthz, err := parseAddr("healthz-bind-address", s.c.HealthzBindAddress)
	if err != nil {
		return err
	}
	if mode := server.Mode(s.c.Authorization.Mode); mode != server.Webhook && mode != server.AlwaysAllow {
		return fmt.Errorf("--authorization-mode=%s: want Webhook or AlwaysAllow", s.c.Authorization.Mode)
	}
	if *s.c.HealthzPort != 0 {
		s.Healthz = netip.AddrPortFrom(healthz, uint16(*s.c.HealthzPort)).String()
	}
	suites, version, err := parseTLS(s.c.TLSCipherSuites, s.c.TLSMinVersion)
	if err != nil {
		return err
	}
	if s.c.ServerTLSBootstrap && s.c.TLSCertFile != "" {
		return fmt.Errorf("--rotate-server-certificates: set either it or --tls-cert-file, not both")
	}
	curves, err := parseCurves(s.c.TLSCurvePreferences)
	if err != nil {
		return err
	}
	s.RotateServing = s.c.ServerTLSBootstrap && *s.c.EnableServer
	authn, authz := s.c.Authentication, s.c.Authorization
	s.Server = server.Config{
		Off: !*s.c.EnableServer, Address: netip.AddrPortFrom(address, uint16(s.c.Port)).String(), NodeName: s.NodeName,
		TLS:               server.TLS{CertFile: s.c.TLSCertFile, KeyFile: s.c.TLSPrivateKeyFile, CertDir: s.certDirectory(), MinVersion: version, CipherSuites: suites, Curves: curves},
		Authentication:    server.Authentication{ClientCAFile: authn.X509.ClientCAFile, Webhook: *authn.Webhook.Enabled, CacheTTL: authn.Webhook.CacheTTL.Duration, Anonymous: *authn.Anonymous.Enabled},
		Authorization:     server.Authorization{Mode: server.Mode(authz.Mode), AuthorizedTTL: authz.Webhook.CacheAuthorizedTTL.Duration, UnauthorizedTTL: authz.Webhook.CacheUnauthorizedTTL.Duration},
		StreamIdleTimeout: s.c.StreamingConnectionIdleTimeout.Duration, Debugging: *s.c.EnableDebuggingHandlers, Profiling: *s.c.EnableProfilingHandler, DebugFlags: *s.c.EnableDebuggingHandlers,
	}
	if off := s.c.EnableDebugFlagsHandler; off != nil && !*off {
		s.Server.DebugFlags = false
	}
	if on := s.c.EnableSystemLogHandler; on == nil || *on {
		s.Logs.Dir = systemLogs
	}
	s.Logs.Query = s.c.EnableSystemLogQuery != nil && *s.c.EnableSystemLogQuery
	return nil
}

// systemLogs is the directory of logs. On Windows it is on the current drive, and exists only if an administrator created it.
const systemLogs = "/var/log"
