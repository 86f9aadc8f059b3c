package kubelet

import (
	"context"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/admit"
	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/node"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/source"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/pod/worker"
	"github.com/winkube/winkube/pkg/podcgroup"
	"github.com/winkube/winkube/pkg/probe"
)

// workload is the pods, and the parts that only they use.
type workload struct {
	pods    *worker.Manager
	runtime *runtime
	ports   hostPorts
	cgroups *podcgroup.Manager // nil: no pod cgroups
}

func newWorkload(cfg Config, clients kubeclient.Clients, b base, node *node.Manager) workload {
	hostIPs := func() []netip.Addr { return cfg.NodeIPs }
	capacity := allocatable{b.objects, node}
	admitter := admit.New(admit.Config{
		NodeName: cfg.NodeName, Platform: cfg.Platform, MaxPods: cfg.Node.PodLimit(cfg.Facts.CPUs),
		Sysctls: cfg.Sysctls, AppArmor: host.AppArmor(), Allocatable: capacity.list, Preempted: cfg.Counters.Preempted,
		Node: b.objects.Node, FreshNode: func(ctx context.Context) *v1.Node { return freshNode(ctx, clients.Main, cfg.NodeName) },
		Reserved: func() []admit.Reserved { return reservedPorts(cfg, b.reports) },
	})
	resolver := cfg.Resolver
	resolver.HostIPs, resolver.Capacity, resolver.Cluster = hostIPs, capacity.list, b.cluster
	resolver.RecursiveReadOnly, resolver.AppArmorLoaded, resolver.HyperV = b.engine.Client.RecursiveReadOnly, host.AppArmorProfile, b.engine.Client.HyperV
	from := cfg.Source
	from.Client, from.Registered = clients.Main, node.Registered
	pods := cfg.Pods
	pods.HostIPs = hostIPs

	doors := hostDoors(cfg, b.objects.AllServices)
	w := workload{runtime: newRuntime(b.engine.Containers, b.network, cfg.Counters),
		ports: newHostPorts(doors, hostPortRules(cfg, doors), sctpNodePort(b.objects.AllServices), b.events.PodEvent)}
	parts := worker.Parts{
		Source: source.New(from), Runtime: w.runtime, Resolver: start.New(resolver, b.puller, b.volumes, b.network), Volumes: b.volumes,
		Objects: b.objects, Attacher: b.network, Status: kubeclient.NewStatusWriter(clients.Main), Admitter: b.closing.Admitter(b.pressure.Admitter(admitter)),
		Prober: prober{probe.New(b.engine.Exec), b.probes}, Executor: b.engine.Exec, HostPorts: w.ports, Events: b.events, Timing: cfg.Counters, Clock: clock.RealClock{},
	}
	if cfg.Cgroups != nil {
		w.cgroups = podcgroup.New(*cfg.Cgroups, podcgroup.Parts{Events: b.events, Counts: cfg.Counters, Clock: clock.RealClock{}})
		parts.Cgroups, parts.Admitter = w.cgroups, w.cgroups.Admitter(parts.Admitter)
	}
	w.pods = worker.New(pods, parts)
	return w
}

// allocatable is what pods may use of this machine, as the scheduler sees it.
type allocatable struct {
	objects *kubeclient.Objects
	node    *node.Manager
}

// list returns the allocatable resources in the Node's status. Before the Node is known, static pods use the calculated values.
func (a allocatable) list() v1.ResourceList {
	if n := a.objects.Node(); n != nil {
		return n.Status.Allocatable
	}
	list, err := a.node.Allocatable(context.Background())
	if err != nil {
		klog.ErrorS(err, "Cannot compute what pods may use of this machine")
	}
	return list
}

// freshNode reads our Node from the API server; nil if it does not answer in time.
func freshNode(ctx context.Context, client clientset.Interface, name string) *v1.Node {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fresh, err := client.Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return fresh
}

// memoryAlarm makes the kernel report when memory runs low; nil: it cannot.
func memoryAlarm(platform pod.Platform, cgroups *podcgroup.Manager) guard.Alarm {
	if platform.OS != "linux" {
		return nil
	}
	alarm, err := cgroup.NewAlarm("/proc", cgroups.Place)
	if err != nil {
		klog.ErrorS(err, "Cannot subscribe to the kernel's memory notifications; checking memory every ten seconds")
		return nil
	}
	return alarm
}
