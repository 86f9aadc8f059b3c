// Package kubelet is the assembly of the node agent: every part of the kubelet's flow is made and joined here, in one function that is
// read from top to bottom, and run until the context ends.
//
//	Config --New--> parts, each given to those that need it --Run--> one goroutine per part
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/admit"
	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/hcs"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/node"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/probe"
	"github.com/winkube/winkube/pkg/server"
	"github.com/winkube/winkube/pkg/stats"
	"github.com/winkube/winkube/pkg/volume/kinds"
)

// Config is what the parts are made of. Each part's own Config stands in it; New fills in what follows from other fields.
type Config struct {
	NodeName string
	Platform pod.Platform
	Facts    host.Facts
	NodeIPs  []netip.Addr // primary first; at least one
	RootDir  string
	// PodCIDRs is taken when the Node object has none (--pod-cidr).
	PodCIDRs []netip.Prefix
	Sysctls  admit.Sysctls

	Events kubeclient.EventLimit

	Node     node.Config
	Engine   docker.Config
	Cgroups  CgroupConfig
	Images   Images
	Network  network.Config
	CNIBin   []string // directories of CNI plugins
	Resolver pod.ResolverConfig
	Pods     pod.Config
	Source   pod.SourceConfig
	Server   server.Config
	Healthz  string // address:port of the plain /healthz, which is served before all this; "": none
	// RotateServing has the serving certificate requested from the API server (serverTLSBootstrap).
	RotateServing bool
	Configz       any // the KubeletConfiguration in use; it must hold no secret
	// Client is the client certificate where it is renewed; nil: it is not.
	Client   *kubeclient.Pair
	Counters *stats.Counters
	Shutdown Shutdown
	Guard    guard.Config
	Logs     Logs
}

// Logs says which of the host's logs are served on /logs/.
type Logs struct {
	Dir   string // whose files are; "": nothing is served (enableSystemLogHandler: false)
	Query bool   // and what services have logged elsewhere (enableSystemLogQuery)
}

const (
	networkPatience = time.Second
	enginePatience  = 2 * time.Second // before an engine that does not answer is asked again
)

// Kubelet is a node agent that has not yet begun, or runs.
type Kubelet struct {
	cfg     Config
	objects *kubeclient.Objects
	engine  *docker.Engine
	network *network.Manager
	pods    *pod.Manager
	ports   hostPorts
	cgroups *cgroups // nil: pods have none
	node    *node.Manager
	server  *server.Server
	records *credential.Records
	// settled is closed when it is known for the first time whether the pod network can be used.
	settled  chan struct{}
	serving  *kubeclient.Pair // nil: the serving certificate is not requested
	guard    *guard.Guard
	figures  *stats.Collector
	disks    *disks
	shutdown *shutdown
	versions discovery.ServerVersionInterface // of the API server
	dns      func(*v1.Pod) (pod.DNS, error)   // of the resolver
	recorder
}

type recorder struct {
	record.EventRecorder
	stop func()
}

// New makes every part. It opens the ports, makes the root directory, and touches neither engine nor API server.
func New(cfg Config, clients kubeclient.Clients) (*Kubelet, error) {
	k, client := &Kubelet{cfg: cfg, settled: make(chan struct{}), versions: clients.Main.Discovery()}, clients.Main
	err := cfg.Shutdown.Check()
	if err != nil {
		return nil, err
	}
	k.shutdown = k.newShutdown()
	events, stop := kubeclient.Events(clients.Events, "kubelet", cfg.NodeName, cfg.Events)
	k.recorder = recorder{events, stop}
	k.objects = kubeclient.NewObjects(client, cfg.NodeName)

	cfg.Engine.HostAddresses, cfg.Engine.HostIPs = hostAddresses(cfg.NodeIPs)
	if k.engine, err = docker.New(cfg.Engine); err != nil {
		return nil, err
	}
	imageVolumes := &imageVolumes{Store: k.engine.Images}
	parts := kinds.Parts{Objects: k.objects, Images: imageVolumes, Clock: clock.RealClock{}, Prepared: cfg.Counters.VolumePrepared}
	volumes, err := kinds.New(cfg.RootDir, cfg.Platform, parts)
	if err != nil {
		return nil, err
	}
	if err := k.makeNetwork(cfg, client); err != nil {
		return nil, err
	}
	k.guard = k.makeGuard(volumes)
	admitter := admit.New(admit.Config{
		NodeName: cfg.NodeName, OS: cfg.Platform.OS, Arch: cfg.Platform.Arch, MaxPods: cfg.Node.PodLimit(cfg.Facts.CPUs),
		Sysctls: cfg.Sysctls, AppArmor: host.AppArmor(), Allocatable: k.allocatable, Preempted: cfg.Counters.Preempted,
		Node: k.objects.Node, FreshNode: func(ctx context.Context) *v1.Node { return freshNode(ctx, client, cfg.NodeName) }, Reserved: reservedPorts(cfg),
	})
	cfg.Resolver.HostIPs = func() []netip.Addr { return cfg.NodeIPs }
	cfg.Resolver.RecursiveReadOnly, cfg.Resolver.AppArmorLoaded = k.engine.Client.RecursiveReadOnly, host.AppArmorProfile
	cfg.Resolver.Capacity, cfg.Resolver.HyperV = k.allocatable, k.engine.Client.HyperV
	resolver, err := k.resolver(cfg, client, volumes)
	if err != nil {
		return nil, err
	}
	probes := stats.NewProbes(func() []pod.View { return k.pods.Snapshot() })
	imageVolumes.resolver, k.dns, cfg.Source.Client, cfg.Source.Registered = resolver, resolver.DNS, client, k.registered
	cfg.Pods.HostIPs = cfg.Resolver.HostIPs
	k.ports = newHostPorts(cfg.NodeIPs, k.podEvent)
	k.pods = pod.New(cfg.Pods, k.withCgroups(pod.Parts{
		Source: pod.NewSource(cfg.Source), Runtime: counted{connecting{k.engine.Containers, k.network}, cfg.Counters}, Resolver: resolver, Volumes: volumes, Objects: k.objects, Attacher: k.network,
		Status: kubeclient.NewStatusWriter(client), Admitter: k.shutdown.admitter(k.guard.Admitter(admitter)), Prober: prober{probe.New(k.engine.Exec), probes}, Executor: k.engine.Exec,
		HostPorts: k.ports, Events: events, Timing: cfg.Counters, Clock: clock.RealClock{},
	}))

	if err := k.objects.OnNode(k.nodeChanged); err != nil {
		return nil, err
	}
	if k.node, err = node.New(cfg.Node, node.Parts{
		Client: clients.Heartbeat, Node: k.objects.Node, Facts: host.Read,
		Addresses:    func() ([]netip.Addr, error) { return cfg.NodeIPs, nil },
		Disk:         func() (host.Disk, error) { return k.diskUsage(context.Background(), cfg.RootDir) },
		RuntimeInfo:  k.runtime,
		Images:       k.images,
		NetworkReady: k.network.Ready, NetworkUnavailable: k.networkUnavailable,
		Pressure:     k.pressure,
		ShuttingDown: k.shutdown.began.Load, Events: events,
	}); err != nil {
		return nil, err
	}
	if k.figures, err = k.makeFigures(); err != nil {
		return nil, err
	}
	certificate, err := k.servingCertificate(client)
	if err != nil {
		return nil, err
	}
	k.server, err = server.New(cfg.Server, server.Parts{
		GetCertificate: certificate,
		Pods:           lookup{k.pods}, Engine: streams{k.engine.Logs, k.engine.Exec}, Observer: k.engine.Containers,
		TokenReviews: clients.Reviews.AuthenticationV1().TokenReviews(), AccessReviews: clients.Reviews.AuthorizationV1().SubjectAccessReviews(),
		Checks:       []server.Check{{Name: "syncloop", Check: func(context.Context) error { return k.pods.Ready() }}},
		Metrics:      metricsHandler(stats.Agent{Node: cfg.NodeName, Pods: k.pods.Snapshot, Disks: k.disks.measure, Plugin: volumes.Plugin, Version: daemon.Kubernetes, Certificates: k.certificates()}, cfg.Counters, stats.Crew(k.disks.crew.State)),
		StatsSummary: k.figures.SummaryHandler(), MetricsResource: k.figures.ResourceHandler(), MetricsCadvisor: k.figures.CadvisorHandler(), MetricsProbes: probes,
		NodeLogs: k.nodeLogs(), DebugPods: debugHandler(k.pods), Configz: cfg.Configz,
	})
	return k, err
}

// freshNode asks the API server for our Node; nil where it does not answer in time.
func freshNode(ctx context.Context, client kubernetes.Interface, name string) *v1.Node {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fresh, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return fresh
}

// withCgroups gives pods cgroups where that is wanted.
func (k *Kubelet) withCgroups(parts pod.Parts) pod.Parts {
	if k.cfg.Cgroups.PerQoS {
		k.cgroups = newCgroups(k.cfg.Cgroups, k.nodeEvent, k.cfg.Counters.Cgroup)
		parts.Cgroups, parts.Admitter = k.cgroups, newWeighed(parts.Admitter, k.cgroups.weight)
	}
	return parts
}

// networkChanged makes the handler of the network's readiness: the Node says so at once.
func (k *Kubelet) networkChanged() func(error) {
	var once sync.Once
	last := errors.New("not known yet")
	return func(ready error) {
		once.Do(func() { close(k.settled) })
		if (last == nil) != (ready == nil) && k.node != nil {
			k.node.Kick()
		}
		last = ready
	}
}

// nodeChanged takes in a new state of our Node: the pod network follows its ranges. When somebody else says that we are not ready, as
// the control plane does after an outage, we have our status compared at once.
func (k *Kubelet) nodeChanged(n *v1.Node) {
	k.network.SetNode(k.withPodCIDRs(n))
	if n == nil {
		return
	}
	if k.serving != nil {
		k.serving.Kick()
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == v1.NodeReady && condition.Status == v1.ConditionUnknown {
			k.node.Kick()
		}
	}
}

// followVersion waits for the Node, on which Events are.
func (k *Kubelet) followVersion(ctx context.Context) {
	select {
	case <-k.node.Registered():
		kubeclient.FollowVersion(ctx, k.versions, daemon.Kubernetes, clock.RealClock{}, k.nodeEvent)
	case <-ctx.Done():
	}
}

// runNode waits a moment for the network, so that an agent that comes back does not tell the cluster that its node is not ready only
// because nobody has looked yet. A Node that is new has no range before it exists, and then the wait is for nothing.
func (k *Kubelet) runNode(ctx context.Context) error {
	select {
	case <-k.settled:
	case <-time.After(networkPatience):
	case <-ctx.Done():
	}
	return k.node.Run(ctx)
}

// registered returns what is closed when the Node exists.
func (k *Kubelet) registered() <-chan struct{} { return k.node.Registered() }

// allocatable is what the scheduler believes that we have: the Node's status. Before that is known, static pods go by what it will be.
func (k *Kubelet) allocatable() v1.ResourceList {
	if n := k.objects.Node(); n != nil {
		return n.Status.Allocatable
	}
	list, err := k.node.Allocatable()
	if err != nil {
		klog.ErrorS(err, "Cannot reckon what pods may use of this machine")
	}
	return list
}

// withPodCIDRs gives a Node without a range the one of --pod-cidr.
func (k *Kubelet) withPodCIDRs(n *v1.Node) *v1.Node {
	if n == nil || len(n.Spec.PodCIDRs) > 0 || len(k.cfg.PodCIDRs) == 0 {
		return n
	}
	n = n.DeepCopy()
	for _, prefix := range k.cfg.PodCIDRs {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, prefix.String())
	}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	return n
}

// runtime is what the Node tells of the engine.
func (k *Kubelet) runtime(ctx context.Context) (node.Runtime, error) {
	info, err := k.engine.Client.Info(ctx)
	handlers := info.Runtimes
	if k.cfg.Platform.OS == "windows" {
		handlers = pod.IsolationHandlers()
	}
	return node.Runtime{Version: info.Version, Handlers: handlers, RecursiveReadOnly: k.engine.Client.RecursiveReadOnly()}, err
}

func (k *Kubelet) engineVersion(ctx context.Context) (string, error) {
	info, err := k.engine.Client.Info(ctx)
	if err != nil {
		return "", err
	}
	return info.Version, nil
}

// makeFigures makes what measures the node and its pods.
func (k *Kubelet) makeFigures() (*stats.Collector, error) {
	return stats.New(stats.Config{NodeName: k.cfg.NodeName, OS: k.cfg.Platform.OS, CPUs: k.cfg.Facts.CPUs, Root: k.cfg.RootDir}, stats.Parts{
		Pods: k.pods.Snapshot, Load: host.ReadLoad, Boot: host.BootTime, Disk: k.disks.crew.Disk, Disks: k.disks.measure,
		ImageRoot: k.imageRoot, HCS: hcs.Measure, Adapters: host.Adapters, Usage: k.engine.Usage.Usage, Runtime: k.engine.Client.PID, PodsPlace: k.cgroups.place,
		Clock: clock.RealClock{},
	})
}

// nodeLogs serves the host's logs; nil: they are not served.
func (k *Kubelet) nodeLogs() http.Handler {
	if k.cfg.Logs.Dir == "" {
		return nil
	}
	return server.NodeLogs{Dir: k.cfg.Logs.Dir, Query: k.cfg.Logs.Query, OS: k.cfg.Platform.OS, Runner: command.New()}
}

func (k *Kubelet) imageRoot(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // who asks for figures does not wait for an engine that hangs
	defer cancel()
	return k.engine.Client.Root(ctx)
}

// Run runs every part until ctx ends, or until one of them cannot go on. Pods are left as they are, unless the host shuts down
// (daemon.ErrShutdown as the cause) and they were to be ended before that.
func (k *Kubelet) Run(ctx context.Context) error {
	defer k.recorder.stop()
	if total := k.cfg.Shutdown.Total(); total > 0 {
		ctx = daemon.UntilShutdown(ctx, "kubelet", total)
	}
	ctx, cancel := k.untilShutdown(ctx)
	defer cancel()
	parts := map[string]func(context.Context) error{
		"objects": k.objects.Run, "network": k.network.Run, "node": k.runNode, "pods": k.runPods, "server": k.server.Run,
		"guard": k.guard.Run, "host ports": k.ports.Run, "out of memory": k.watchOOM,
	}
	if k.serving != nil {
		parts["serving certificate"] = k.serving.Run
	}
	go k.followVersion(ctx)
	ended := make(chan error, len(parts))
	for name, run := range parts {
		go func() {
			if err := run(ctx); err != nil {
				ended <- fmt.Errorf("%s: %w", name, err)
				return
			}
			ended <- nil
		}()
	}
	var first error
	for range parts {
		if err := <-ended; err != nil && first == nil && ctx.Err() == nil {
			first = err
			cancel()
		}
	}
	return first
}

// runPods starts no pod before its cgroups can be made.
func (k *Kubelet) runPods(ctx context.Context) error {
	if k.cgroups != nil {
		info, err := k.engineInfo(ctx)
		if err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		if err := k.cgroups.start(ctx, info.CgroupDriver); err != nil {
			return err
		}
		go k.cgroups.run(ctx)
	}
	return k.pods.Run(ctx)
}

// engineInfo asks the engine until it answers.
func (k *Kubelet) engineInfo(ctx context.Context) (docker.Info, error) {
	for {
		info, err := k.engine.Client.Info(ctx)
		if err == nil || ctx.Err() != nil {
			return info, err
		}
		klog.ErrorS(err, "The engine does not tell how it keeps cgroups; no pod is started before it does")
		select {
		case <-ctx.Done():
		case <-time.After(enginePatience):
		}
	}
}

// nodeEvent tells something of the Node.
func (k *Kubelet) nodeEvent(kind, reason, message string) {
	k.recorder.Event(&v1.ObjectReference{Kind: "Node", Name: k.cfg.NodeName, UID: types.UID(k.cfg.NodeName)}, kind, reason, message)
}
