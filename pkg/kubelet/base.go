package kubelet

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/usage"
	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/learn"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/shutdown"
	"github.com/winkube/winkube/pkg/stats"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/grow"
	"github.com/winkube/winkube/pkg/volume/kinds"
	"github.com/winkube/winkube/pkg/wake"
)

// claimPatience is how long reading and writing the claim of a local volume that has grown may take. The next synchronization tries again.
const claimPatience = 30 * time.Second

// base is the parts that the Node and the pods need and that need neither.
type base struct {
	events      events
	nodeChanged wake.Signal     // triggers a comparison of the Node's status by package node
	closing     *shutdown.State // whether the host is shutting down
	pressure    *guard.Pressure // resources that the node is short of
	probes      *stats.Probes   // counters
	settled     *settled        // whether the network was compared

	objects  *kubeclient.Objects
	versions kubeclient.VersionReader // of the API server
	serving  *kubeclient.Pair         // nil: no serving certificate is requested
	engine   *docker.Engine
	records  *credential.Records
	puller   *start.Puller
	csi      csiDrivers
	csiKind  *csiVolumes // nil: not on this host
	attached []nodeKind  // the kinds whose volumes are attached to the node, with csiKind
	volumes  *volume.Manager
	disks    *stats.Disks
	reports  report.FactsFile // of this host's proxy
	cluster  *learn.Cluster
	network  *network.Manager
}

func newBase(cfg Config, clients kubeclient.Clients, events events) (base, error) {
	b := base{events: events, nodeChanged: wake.New(), closing: &shutdown.State{}, pressure: &guard.Pressure{}, probes: stats.NewProbes(), versions: clients.Main}
	b.settled = newSettled(b.nodeChanged)
	b.objects = kubeclient.NewObjects(clients.Main, cfg.NodeName)
	var err error
	if b.serving, err = newServing(cfg, clients.Main, b.objects); err != nil {
		return b, err
	}
	cfg.Engine.HostAddresses, cfg.Engine.HostIPs = hostAddresses(cfg.NodeIPs, b.objects.AllServices)
	if b.engine, err = docker.New(cfg.Engine); err != nil {
		return b, err
	}
	if b.records, err = credential.NewRecords(cfg.RootDir, cfg.Images.Policy, cfg.Images.Allowed); err != nil {
		return b, err
	}
	if b.puller, err = newPuller(cfg, clients.Main, b.objects, b.engine, b.records, b.events); err != nil {
		return b, err
	}
	reader, err := kubeclient.NewCSIObjects(b.objects)
	if err != nil {
		return b, fmt.Errorf("cannot read objects for CSI volumes: %w", err)
	}
	b.csi = newCSIDrivers(cfg, clients.Main, reader, b.events)
	here, err := volume.Open(cfg.RootDir, cfg.Platform)
	if err != nil {
		return b, err
	}
	b.csiKind, b.attached = newNodeKinds(cfg, here, b.csi, b.events, reader, b.nodeChanged)
	b.volumes, err = kinds.New(here,
		kinds.Parts{
			Objects: b.objects, Images: imageVolumes{b.engine.Images, b.puller}, Clock: clock.RealClock{}, Run: command.New(), Prepared: cfg.Counters.VolumePrepared,
			Growth: grow.Parts{NodeName: cfg.NodeName, Objects: reader, Events: b.events, Clock: clock.RealClock{}, Limit: claimPatience},
		},
		volumeKinds(b.attached)...)
	if err != nil {
		return b, err
	}
	b.disks = stats.NewDisks(statsConfig(cfg), b.volumes, engineFigures{b.engine.Usage, b.engine.Client}, clock.RealClock{})
	b.reports = proxyReports(cfg)
	if b.cluster, err = newCluster(cfg, b.objects, b.reports); err != nil {
		return b, err
	}
	if b.network, err = newNetwork(cfg, clients, b.engine, b.events, b.settled, b.cluster); err != nil {
		return b, err
	}
	b.cluster.OnChange(b.network.Kick)
	return b, nil
}

// engineFigures adapts the engine to package stats.
type engineFigures struct {
	*usage.Meter
	*engine.Client
}

func statsConfig(cfg Config) stats.Config {
	return stats.Config{NodeName: cfg.NodeName, OS: cfg.Platform.OS, CPUs: cfg.Facts.CPUs, Root: cfg.RootDir, VolumeHealth: cfg.VolumeHealth}
}

// events sends Events about this Node and its pods.
type events struct {
	record.EventRecorder
	node string
	stop func()
}

func newEvents(client clientset.Interface, cfg Config) events {
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

// ClaimEvent sends an Event about a PersistentVolumeClaim.
func (e events) ClaimEvent(namespace, name, uid, kind, reason, message string) {
	e.Event(&v1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name, UID: types.UID(uid)}, kind, reason, message)
}

// settled records whether the pod network is usable.
type settled struct {
	done chan struct{} // closed when this is first known
	node wake.Signal   // sent when it changes

	once sync.Once
	last error
}

func newSettled(node wake.Signal) *settled {
	return &settled{done: make(chan struct{}), node: node, last: errors.New("not known yet")}
}

// changed records the network's readiness. Only one goroutine may call it.
func (s *settled) changed(ready error) {
	s.once.Do(func() { close(s.done) })
	if (s.last == nil) != (ready == nil) {
		s.node.Send()
	}
	s.last = ready
}

// nodeFollower passes the states of our Node to other parts.
type nodeFollower struct {
	podCIDRs []netip.Prefix // for a Node that has none
	network  interface{ SetNode(*v1.Node) }
	serving  *kubeclient.Pair // nil: no serving certificate is requested
	changed  wake.Signal
}

// follow is called for each new state of the Node, nil if it was deleted. The pod network follows the Node's ranges. If others set our
// readiness to unknown, as the control plane does after an outage, it triggers a comparison of our status.
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

// withPodCIDRs adds the ranges of --pod-cidr to a Node without ranges.
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

// nodeHost adapts the machine to package node.
type nodeHost struct {
	*stats.Disks
	addresses []netip.Addr
}

func (nodeHost) Facts() (host.Facts, error) { return host.Read() }

func (h nodeHost) Addresses() ([]netip.Addr, error) { return h.addresses, nil }

// nodeEngine adapts the engine to package node.
type nodeEngine struct {
	engine   *docker.Engine
	records  *credential.Records
	faults   *engineFaults
	platform pod.Platform
}

// nodeNetwork adapts network.Manager to package node.
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
