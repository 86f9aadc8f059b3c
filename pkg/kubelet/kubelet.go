// Package kubelet assembles the node agent: it creates and connects every part of the kubelet's flow, in one function to read from top to
// bottom, and runs them until the context ends.
//
//	Config --New--> parts in the order of their dependencies, each made from finished ones --Run--> one goroutine per part
//
// Nothing here refers to a part that does not exist yet. If two parts need each other, what they share is created before both: the trigger
// to compare the Node's status (wake.Signal), whether the host is shutting down (shutdown.State), what the node is short of
// (guard.Pressure), the counts of probes (stats.Probes), and the image puller, because volumes need it and the Resolver needs volumes.
package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/admit"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/firewalld"
	"github.com/winkube/winkube/pkg/node"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/source"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/pod/worker"
	"github.com/winkube/winkube/pkg/podcgroup"
	"github.com/winkube/winkube/pkg/server"
	"github.com/winkube/winkube/pkg/shutdown"
	"github.com/winkube/winkube/pkg/stats"
)

// Config has each part's own Config, the settings that several parts share, and those of the parts that New builds itself. New derives
// settings that follow from other fields.
type Config struct {
	Machine
	Serving
	// PodCIDRs are used for a Node that has none (--pod-cidr).
	PodCIDRs []netip.Prefix
	Sysctls  admit.Sysctls
	CNIBin   []string // directories of CNI plugins
	Images   Images

	Events   kubeclient.EventLimit
	Node     node.Config
	Engine   docker.Config
	Cgroups  *podcgroup.Config // nil: pods have none (cgroupsPerQOS: false, and Windows)
	Network  network.Config
	Resolver start.Config
	Pods     worker.Config
	Source   source.Config
	Server   server.Config
	Guard    guard.Config
	Shutdown shutdown.Config
	// VolumeHealth has the health of CSI volumes reported (feature gate CSIVolumeHealth).
	VolumeHealth bool

	// Client is the client certificate if it is renewed; nil if not.
	Client   *kubeclient.Pair
	Counters *stats.Counters
}

// Machine is the host that the kubelet runs on, and the node's name.
type Machine struct {
	NodeName string
	Platform pod.Platform
	Facts    host.Facts
	NodeIPs  []netip.Addr // primary first; at least one
	RootDir  string       // for pods' volumes and files
	FlexDir  string       // with a directory for each flexVolume driver; "": such volumes are refused
}

// Serving is what is served besides package server's own Config.
type Serving struct {
	Healthz string // address:port of the plain /healthz, which is served before everything else; "": none
	// RotateServing makes the kubelet request its serving certificate from the API server (serverTLSBootstrap).
	RotateServing bool
	Configz       any // the KubeletConfiguration in use; it must not contain secrets
	Logs          Logs
}

// Logs selects the host logs that are served on /logs/.
type Logs struct {
	Dir   string // directory of the served files; "": nothing is served (enableSystemLogHandler: false)
	Query bool   // also serve what services logged elsewhere (enableSystemLogQuery)
}

const (
	networkPatience = time.Second
	enginePatience  = 2 * time.Second // before an unresponsive engine is asked again
)

// Kubelet is a node agent, before or during Run.
type Kubelet struct {
	base
	node     *node.Manager
	workload workload
	guard    *guard.Guard
	shutdown *shutdown.Manager
	grace    time.Duration       // total time for a shutdown of the host
	server   *server.Server      // nil: off
	health   *stats.VolumeHealth // nil: not reported

	podBridge string // of the interfaces that the kubelet makes; "": none
}

// New creates every part. It opens the ports and creates the root directory, but contacts neither the engine nor the API server.
func New(cfg Config, clients kubeclient.Clients) (_ *Kubelet, err error) {
	if err := cfg.Shutdown.Check(); err != nil {
		return nil, err
	}
	events := newEvents(clients.Events, cfg)
	defer func() {
		if err != nil {
			events.stop()
		}
	}()
	base, err := newBase(cfg, clients, events)
	if err != nil {
		return nil, err
	}
	node, err := node.New(cfg.Node, node.Parts{
		Client: clients.Heartbeat, Watch: base.objects, Host: nodeHost{base.disks, cfg.NodeIPs},
		Engine: nodeEngine{base.engine, base.records, newEngineFaults(cfg, base.events), cfg.Platform}, Network: nodeNetwork{base.network},
		Volumes: newAttachable(base.attached), Pressure: base.pressure, Shutdown: base.closing, Changed: base.nodeChanged, Events: base.events, Clock: clock.RealClock{},
	})
	if err != nil {
		return nil, err
	}
	work := newWorkload(cfg, clients, base, node)
	if err := base.objects.OnService(work.ports.follow, nil); err != nil {
		return nil, err
	}
	figures, err := stats.New(statsConfig(cfg), stats.Parts{
		Pods: work.pods, Host: stats.ThisHost{}, Disks: base.disks, Engine: engineFigures{base.engine.Usage, base.engine.Client}, Cgroups: work.cgroups, Clock: clock.RealClock{},
	})
	if err != nil {
		return nil, err
	}
	guard := guard.New(cfg.Guard, guard.Parts{
		Pressure: base.pressure, Pods: work.pods, Disks: base.disks, Figures: figures, Images: base.engine.Images, Counts: cfg.Counters,
		Events: base.events, Node: base.nodeChanged, Alarm: memoryAlarm(cfg.Platform, work.cgroups), Clock: clock.RealClock{},
	})
	shutdown := shutdown.New(cfg.Shutdown, base.closing, work.pods, newAttachable(base.attached), base.nodeChanged, clock.RealClock{})
	server, err := newServer(cfg, clients, base, work, figures)
	if err != nil {
		return nil, err
	}
	if err := base.objects.OnNode(nodeFollower{cfg.PodCIDRs, base.network, base.serving, base.nodeChanged}.follow); err != nil {
		return nil, err
	}
	if err := base.objects.OnNode(base.csi.SetNode); err != nil {
		return nil, err
	}
	return &Kubelet{base: base, node: node, workload: work, guard: guard, shutdown: shutdown, grace: cfg.Shutdown.Total(), server: server, health: newVolumeHealth(cfg, base, work), podBridge: cfg.Network.PodBridge()}, nil
}

// Run runs every part until ctx ends or one of them fails, and returns when all have ended. Pods keep running, unless the host shuts down
// (daemon.ErrShutdown is the cause) and the configuration says to end them first.
func (k *Kubelet) Run(ctx context.Context) error {
	defer k.events.stop()
	if k.grace > 0 {
		var stop func()
		ctx, stop = daemon.UntilShutdown(ctx, "kubelet", k.grace)
		defer stop()
	}
	ctx, cancel := k.shutdown.Context(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	run := func(name string, part func(context.Context) error) {
		group.Go(func() error {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	run("objects", k.objects.Run)
	run("cluster", k.cluster.Run)
	run("network", k.network.Run)
	run("node", k.runNode)
	run("CSI drivers", k.csi.Run)
	run("pods", k.runPods)
	run("guard", k.guard.Run)
	run("host ports", k.workload.ports.Run)
	if k.podBridge != "" {
		run("firewalld", func(ctx context.Context) error { return firewalld.Keep(ctx, k.podBridge) })
	}
	run("out of memory", func(ctx context.Context) error { guard.WatchOOM(ctx, k.events); return nil })
	run("version", k.followVersion)
	if k.server != nil {
		run("server", k.server.Run)
	}
	for _, kind := range k.attached {
		run("volumes of "+kind.Name(), kind.Run)
	}
	if k.health != nil {
		run("health of volumes", k.health.Run)
	}
	if k.serving != nil {
		run("serving certificate", k.serving.Run)
	}
	return group.Wait()
}

// followVersion waits for the Node, because its Events refer to it.
func (k *Kubelet) followVersion(ctx context.Context) error {
	select {
	case <-k.node.Registered():
		kubeclient.FollowVersion(ctx, k.versions, daemon.Kubernetes, clock.RealClock{}, k.events.NodeEvent)
	case <-ctx.Done():
	}
	return nil
}

// runNode waits briefly for the network, so that a restarted agent does not report its node as not ready only because the network was not
// compared yet. A new Node has no range before it exists; the wait is then useless.
func (k *Kubelet) runNode(ctx context.Context) error {
	select {
	case <-k.settled.done:
	case <-time.After(networkPatience):
	case <-ctx.Done():
	}
	return k.node.Run(ctx)
}

// runPods starts no pod before cgroups can be created.
func (k *Kubelet) runPods(ctx context.Context) error {
	defer k.workload.runtime.wait()
	if k.workload.cgroups == nil {
		return k.workload.pods.Run(ctx)
	}
	info, err := k.engineInfo(ctx)
	if err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	if err := k.workload.cgroups.Start(ctx, info.CgroupDriver); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var cgroups sync.WaitGroup
	defer cgroups.Wait()
	defer cancel()
	cgroups.Go(func() { k.workload.cgroups.Run(ctx) })
	return k.workload.pods.Run(ctx)
}

// engineInfo asks the engine until it answers.
func (k *Kubelet) engineInfo(ctx context.Context) (docker.Info, error) {
	for {
		info, err := k.engine.Client.Info(ctx)
		if err == nil || ctx.Err() != nil {
			return info, err
		}
		klog.ErrorS(err, "Cannot read Docker's cgroup configuration; not starting pods until Docker responds")
		select {
		case <-ctx.Done():
		case <-time.After(enginePatience):
		}
	}
}
