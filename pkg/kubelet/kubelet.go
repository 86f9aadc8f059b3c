// Package kubelet is the assembly of the node agent: every part of the kubelet's flow is made and joined here, in one function that is
// read from top to bottom, and run until the context ends.
//
//	Config --New--> parts in the order of their dependencies, each made from finished ones --Run--> one goroutine per part
//
// Nothing here refers to a part that does not exist yet. Where two parts need each other, what they share is made before both: that the Node's
// status has to be compared (wake.Signal), whether the host shuts down (shutdown.State), what the node is short of (guard.Pressure), the counts
// of probes (stats.Probes), and the puller of images, which volumes need and the Resolver that needs volumes.
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

// Config is what the parts are made of: each part's own Config, what several of them need, and what New makes parts of itself. New fills in
// what follows from other fields.
type Config struct {
	Machine
	Serving
	// PodCIDRs are those of a Node that has none (--pod-cidr).
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

	// Client is the client certificate where it is renewed; nil: it is not.
	Client   *kubeclient.Pair
	Counters *stats.Counters
}

// Machine is where the kubelet runs, and as whom.
type Machine struct {
	NodeName string
	Platform pod.Platform
	Facts    host.Facts
	NodeIPs  []netip.Addr // primary first; at least one
	RootDir  string       // for pods' volumes and files
}

// Serving is what is served beside package server's own Config.
type Serving struct {
	Healthz string // address:port of the plain /healthz, which is served before all this; "": none
	// RotateServing has the serving certificate requested from the API server (serverTLSBootstrap).
	RotateServing bool
	Configz       any // the KubeletConfiguration in use; it must hold no secret
	Logs          Logs
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
	base
	node     *node.Manager
	workload workload
	guard    *guard.Guard
	shutdown *shutdown.Manager
	grace    time.Duration // for a shutdown of the host, in all
	server   *server.Server
}

// New makes every part. It opens the ports, makes the root directory, and touches neither engine nor API server.
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
		Engine: nodeEngine{base.engine, base.records, cfg.Platform}, Network: nodeNetwork{base.network},
		Pressure: base.pressure, Shutdown: base.closing, Changed: base.nodeChanged, Events: base.events, Clock: clock.RealClock{},
	})
	if err != nil {
		return nil, err
	}
	work := newWorkload(cfg, clients, base, node)
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
	shutdown := shutdown.New(cfg.Shutdown, base.closing, work.pods, base.nodeChanged, clock.RealClock{})
	server, err := newServer(cfg, clients, base, work, figures)
	if err != nil {
		return nil, err
	}
	if err := base.objects.OnNode(nodeFollower{cfg.PodCIDRs, base.network, base.serving, base.nodeChanged}.follow); err != nil {
		return nil, err
	}
	return &Kubelet{base: base, node: node, workload: work, guard: guard, shutdown: shutdown, grace: cfg.Shutdown.Total(), server: server}, nil
}

// Run runs every part until ctx ends, or until one of them cannot go on, and returns when all have ended. Pods are left as they are, unless the
// host shuts down (daemon.ErrShutdown as the cause) and they were to be ended before that.
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
	run("network", k.network.Run)
	run("node", k.runNode)
	run("pods", k.runPods)
	run("server", k.server.Run)
	run("guard", k.guard.Run)
	run("host ports", k.workload.ports.Run)
	run("out of memory", func(ctx context.Context) error { guard.WatchOOM(ctx, k.events); return nil })
	run("version", k.followVersion)
	if k.serving != nil {
		run("serving certificate", k.serving.Run)
	}
	return group.Wait()
}

// followVersion waits for the Node, on which Events are.
func (k *Kubelet) followVersion(ctx context.Context) error {
	select {
	case <-k.node.Registered():
		kubeclient.FollowVersion(ctx, k.versions, daemon.Kubernetes, clock.RealClock{}, k.events.NodeEvent)
	case <-ctx.Done():
	}
	return nil
}

// runNode waits a moment for the network, so that an agent that comes back does not report its node as not ready only because the network has
// not been compared yet. A new Node has no range before it exists, and then the wait is in vain.
func (k *Kubelet) runNode(ctx context.Context) error {
	select {
	case <-k.settled.done:
	case <-time.After(networkPatience):
	case <-ctx.Done():
	}
	return k.node.Run(ctx)
}

// runPods starts no pod before its cgroups can be made.
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
