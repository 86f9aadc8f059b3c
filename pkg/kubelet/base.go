package kubelet

import (
	"errors"
	"net/netip"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/usage"
	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/shutdown"
	"github.com/winkube/winkube/pkg/stats"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/kinds"
	"github.com/winkube/winkube/pkg/wake"
)

// base is what the Node and pods need and what needs neither of them.
type base struct {
	events      events
	nodeChanged wake.Signal     // the Node's status has to be compared: package node receives it
	closing     *shutdown.State // whether the host shuts down
	pressure    *guard.Pressure // what the node is short of
	probes      *stats.Probes   // counts
	settled     *settled        // whether the network was compared

	objects  *kubeclient.Objects
	versions discovery.ServerVersionInterface // of the API server
	serving  *kubeclient.Pair                 // nil: the serving certificate is not requested
	engine   *docker.Engine
	records  *credential.Records
	puller   *start.Puller
	volumes  *volume.Manager
	disks    *stats.Disks
	network  *network.Manager
}

func newBase(cfg Config, clients kubeclient.Clients, events events) (base, error) {
	b := base{events: events, nodeChanged: wake.New(), closing: &shutdown.State{}, pressure: &guard.Pressure{}, probes: stats.NewProbes(), versions: clients.Main.Discovery()}
	b.settled = newSettled(b.nodeChanged)
	b.objects = kubeclient.NewObjects(clients.Main, cfg.NodeName)
	var err error
	if b.serving, err = newServing(cfg, clients.Main, b.objects); err != nil {
		return b, err
	}
	cfg.Engine.HostAddresses, cfg.Engine.HostIPs = hostAddresses(cfg.NodeIPs)
	if b.engine, err = docker.New(cfg.Engine); err != nil {
		return b, err
	}
	if b.records, err = credential.NewRecords(cfg.RootDir, cfg.Images.Policy, cfg.Images.Allowed); err != nil {
		return b, err
	}
	if b.puller, err = newPuller(cfg, clients.Main, b.objects, b.engine, b.records, b.events); err != nil {
		return b, err
	}
	b.volumes, err = kinds.New(cfg.RootDir, cfg.Platform,
		kinds.Parts{Objects: b.objects, Images: imageVolumes{b.engine.Images, b.puller}, Clock: clock.RealClock{}, Prepared: cfg.Counters.VolumePrepared})
	if err != nil {
		return b, err
	}
	b.disks = stats.NewDisks(statsConfig(cfg), b.volumes, engineFigures{b.engine.Usage, b.engine.Client}, clock.RealClock{})
	b.network, err = newNetwork(cfg, clients.Main, b.engine, b.events, b.settled)
	return b, err
}

// engineFigures is the engine in the words of package stats.
type engineFigures struct {
	*usage.Meter
	*engine.Client
}

func statsConfig(cfg Config) stats.Config {
	return stats.Config{NodeName: cfg.NodeName, OS: cfg.Platform.OS, CPUs: cfg.Facts.CPUs, Root: cfg.RootDir}
}

// events sends Events about this Node and its pods.
type events struct {
	record.EventRecorder
	node string
	stop func()
}

func newEvents(client kubernetes.Interface, cfg Config) events {
	recorder, stop := kubeclient.Events(client, "kubelet", cfg.NodeName, cfg.Events)
	return events{recorder, cfg.NodeName, stop}
}

// NodeEvent sends an Event about the Node.
func (e events) NodeEvent(kind, reason, message string) {
	e.Event(&v1.ObjectReference{Kind: "Node", Name: e.node, UID: types.UID(e.node)}, kind, reason, message)
}

// PodEvent sends an Event about a pod.
func (e events) PodEvent(namespace, name, uid, kind, reason, message string) {
	e.Event(&v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)}, kind, reason, message)
}

// settled knows whether the pod network can be used.
type settled struct {
	done chan struct{} // closed when it is known for the first time
	node wake.Signal   // sent when it is another

	once sync.Once
	last error
}

func newSettled(node wake.Signal) *settled {
	return &settled{done: make(chan struct{}), node: node, last: errors.New("not known yet")}
}

// changed takes the network's readiness. It is called by one goroutine.
func (s *settled) changed(ready error) {
	s.once.Do(func() { close(s.done) })
	if (s.last == nil) != (ready == nil) {
		s.node.Send()
	}
	s.last = ready
}

// nodeFollower gives parts the states of our Node.
type nodeFollower struct {
	podCIDRs []netip.Prefix // of a Node that has none
	network  interface{ SetNode(*v1.Node) }
	serving  *kubeclient.Pair // nil: the serving certificate is not requested
	changed  wake.Signal
}

// follow is called for each new state, nil when the Node is gone: the pod network follows its ranges. When others say that we are not ready, as
// the control plane does after an outage, our status is compared now.
func (f nodeFollower) follow(n *v1.Node) {
	f.network.SetNode(f.withPodCIDRs(n))
	if n == nil {
		return
	}
	if f.serving != nil {
		f.serving.Kick()
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == v1.NodeReady && condition.Status == v1.ConditionUnknown {
			f.changed.Send()
		}
	}
}

// withPodCIDRs gives a Node without a range those of --pod-cidr.
func (f nodeFollower) withPodCIDRs(n *v1.Node) *v1.Node {
	if n == nil || len(n.Spec.PodCIDRs) > 0 || len(f.podCIDRs) == 0 {
		return n
	}
	n = n.DeepCopy()
	for _, prefix := range f.podCIDRs {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, prefix.String())
	}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	return n
}

// nodeHost is the machine in the words of package node.
type nodeHost struct {
	*stats.Disks
	addresses []netip.Addr
}

func (nodeHost) Facts() (host.Facts, error) { return host.Read() }

func (h nodeHost) Addresses() ([]netip.Addr, error) { return h.addresses, nil }

// nodeEngine is the engine in the words of package node.
type nodeEngine struct {
	engine   *docker.Engine
	records  *credential.Records
	platform pod.Platform
}

// nodeNetwork is network.Manager in the words of package node.
type nodeNetwork struct{ *network.Manager }

func (n nodeNetwork) Unavailable() *v1.NodeCondition {
	c := n.Manager.Unavailable()
	if c == nil {
		return nil
	}
	status := v1.ConditionTrue
	if c.Ready {
		status = v1.ConditionFalse
	}
	return &v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: status, Reason: c.Reason, Message: c.Message}
}
