// Package node maintains the Node object, its status and its Lease.
//
//	host.Facts, engine, images, network, pressure --> Status(...) v1.NodeStatus --patch when it differs--> API server
//	a timer                                       --> Lease
//
// Status is pure. Manager registers the node, compares and patches; it requests only what NodeRestriction allows a node.
package node

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/wake"
)

// Parts are the dependencies of a Manager. Their methods may block for as long as their ctx, or for a few seconds.
type Parts struct {
	Client   clientset.Interface
	Watch    Watch
	Host     Host
	Engine   Engine
	Network  Network
	Volumes  Volumes                                          // nil: the Node's volumes stay as they are
	Pressure interface{ Conditions() []v1.NodeConditionType } // guard.Pressure
	Shutdown interface{ Begun() bool }                        // of the host (shutdown.State); makes the node not ready
	// Changed triggers a comparison of the status, and a write if it differs, before the next tick.
	Changed wake.Signal
	Events  record.EventRecorder
	Clock   clock.WithTicker
}

// Watch returns our own Node as last seen; nil: read it from the API server.
type Watch interface {
	Node() *v1.Node
}

// Host is the machine.
type Host interface {
	Facts() (host.Facts, error)
	Addresses() ([]netip.Addr, error)            // as host.NodeAddress
	NodeDisk(context.Context) (host.Disk, error) // of the kubelet's root directory
}

// Engine is Docker as the Node shows it.
type Engine interface {
	// Runtime describes the engine. An error makes the node not ready.
	Runtime(context.Context) (Runtime, error)
	// Images lists the local images. It is called for each status and is cheap unless they changed.
	Images(context.Context) ([]v1.ContainerImage, error)
}

// Network is the pods' network.
type Network interface {
	// Ready returns why pods cannot use the network; an error makes the node not ready.
	Ready() error
	// Unavailable is the condition NetworkUnavailable without its times; nil leaves the condition to others.
	Unavailable() *v1.NodeCondition
}

// Volumes reports the volumes that pods use on this node.
type Volumes interface {
	// InUse are the volumes that the control plane must not detach; never nil.
	InUse() []v1.UniqueVolumeName
	// Reported is called with the Node as the API server has it, after each status that was sent or needed no sending.
	Reported(node *v1.Node)
}

// Pressure says which resources of the node are short.
type Pressure struct{ Memory, Disk, PID bool }

func pressureOf(conditions []v1.NodeConditionType) Pressure {
	has := func(c v1.NodeConditionType) bool { return slices.Contains(conditions, c) }
	return Pressure{Memory: has(v1.NodeMemoryPressure), Disk: has(v1.NodeDiskPressure), PID: has(v1.NodePIDPressure)}
}

// Fixed times and limits of a Manager.
const (
	attempts       = 5 // to send one status
	firstPause     = 100 * time.Millisecond
	longestPause   = 7 * time.Second // between attempts to register, as upstream
	requestTimeout = 10 * time.Second
	engineTimeout  = 5 * time.Second // an engine that takes longer counts as down
	// patience is how long the node must be not ready for one reason before an Event reports it. Short gaps around a start or restart are
	// normal.
	patience = 3 * time.Second
	// longestEvent is below the API server's limit for an Event's message (1024 bytes).
	longestEvent = 1000
)

// Manager maintains the Node object and the Lease. Only Run's goroutine uses its state.
type Manager struct {
	config     Config
	parts      Parts
	registered chan struct{}

	last     *v1.Node  // the API server's answer to our last request
	reported time.Time // when it accepted our last status; zero: never
	due      time.Time // when the next status without a change is sent

	images []v1.ContainerImage // as last listed

	unschedulable bool
	wrong         complaint
}

// complaint is why the node is not ready.
type complaint struct {
	text  string // "": it is ready
	since time.Time
	told  bool
}

// New returns a Manager. The error names the invalid part of config.
func New(config Config, parts Parts) (*Manager, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	return &Manager{config: config, parts: parts, registered: make(chan struct{})}, nil
}

// Registered returns a channel that is closed when the Node is known to exist.
func (m *Manager) Registered() <-chan struct{} { return m.registered }

// Run registers the node, retrying until it succeeds, and maintains status and Lease until ctx ends, which is not an error. It registers a
// Node again that is deleted meanwhile.
func (m *Manager) Run(ctx context.Context) error {
	if !m.register(ctx) {
		return nil
	}
	close(m.registered)
	m.event(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	var lease sync.WaitGroup
	defer lease.Wait()
	lease.Go(func() { m.keepLease(ctx) })
	ticker := m.parts.Clock.NewTicker(m.config.UpdateFrequency)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := m.sync(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Cannot update the node's status; retrying", "node", m.config.Name)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C():
		case <-m.parts.Changed:
		}
	}
	return nil
}

// register retries until our Node exists and has our labels. It returns false if ctx ended first.
func (m *Manager) register(ctx context.Context) bool {
	backoff := wait.Backoff{Duration: firstPause, Factor: 2, Cap: longestPause, Steps: math.MaxInt}
	for {
		err := m.tryRegister(ctx)
		if err == nil {
			return true
		}
		pause := backoff.Step()
		if ctx.Err() == nil {
			klog.ErrorS(err, "Cannot register the node yet; retrying", "node", m.config.Name, "in", pause)
		}
		select {
		case <-ctx.Done():
			return false
		case <-m.parts.Clock.After(pause):
		}
	}
}

func (m *Manager) tryRegister(ctx context.Context) error {
	in, err := m.gather(ctx, v1.NodeStatus{})
	if err != nil {
		return err
	}
	if !m.config.Unregistered {
		created, err := m.create(ctx, newNode(in))
		if err == nil {
			klog.InfoS("Registered the node", "node", m.config.Name)
			m.spread(true)
			m.sent(created)
			m.emit(v1.NodeStatus{}, created.Status)
			return nil
		}
		// A node that may not create its Node may find one that an administrator created.
		if apierrors.IsForbidden(err) {
			if _, getErr := m.get(ctx); getErr != nil {
				return err
			}
		} else if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	existing, err := m.get(ctx)
	if err != nil {
		return err
	}
	klog.InfoS("Found the node registered", "node", m.config.Name)
	m.last, m.unschedulable = existing, existing.Spec.Unschedulable
	warnOfTaints(m.config.Taints, existing)
	return m.update(ctx, existing, desiredLabels(m.config, in.Facts), true)
}

func (m *Manager) create(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return m.parts.Client.Nodes().Create(ctx, node, metav1.CreateOptions{})
}

func (m *Manager) get(ctx context.Context) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return m.parts.Client.Nodes().Get(ctx, m.config.Name, metav1.GetOptions{})
}

func (m *Manager) patch(ctx context.Context, patch []byte) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return m.parts.Client.Nodes().Patch(ctx, m.config.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// sync compares and sends differences. From the second attempt on, it reads the Node from the API server.
func (m *Manager) sync(ctx context.Context) error {
	var err error
	for attempt := range attempts {
		if err = m.trySync(ctx, attempt > 0); err == nil || ctx.Err() != nil {
			return nil
		}
		if apierrors.IsNotFound(err) {
			klog.InfoS("The node was deleted from the API server; registering it again", "node", m.config.Name)
			m.last = nil
			m.register(ctx)
			return nil
		}
	}
	return err
}

func (m *Manager) trySync(ctx context.Context, ask bool) error {
	known, err := m.known(ctx, ask)
	if err != nil {
		return err
	}
	if known.Spec.Unschedulable != m.unschedulable {
		m.unschedulable = known.Spec.Unschedulable
		reason := "NodeSchedulable"
		if m.unschedulable {
			reason = "NodeNotSchedulable"
		}
		m.event(v1.EventTypeNormal, reason, "Node "+m.config.Name+" status is now: "+reason)
	}
	return m.update(ctx, known, nil, false)
}

// known is the newest known state of our Node: the watch's or, if that is older, the answer to our last request. If the watch has no Node,
// it asks the API server, because the Node may be gone.
func (m *Manager) known(ctx context.Context, ask bool) (*v1.Node, error) {
	if ask {
		return m.get(ctx)
	}
	node := m.parts.Watch.Node()
	if node == nil {
		return m.get(ctx)
	}
	if m.last != nil && node.UID == m.last.UID {
		if order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, m.last.ResourceVersion); err == nil && order < 0 {
			return m.last, nil
		}
	}
	return node, nil
}

// update applies our status, the labels that the scheduler depends on, and labels (may be nil) to known. It sends nothing if nothing
// differs and no heartbeat is due, unless always is set.
func (m *Manager) update(ctx context.Context, known *v1.Node, labels map[string]string, always bool) error {
	in, err := m.gather(ctx, known.Status)
	if err != nil {
		return err
	}
	want := known.DeepCopy()
	want.Status = Status(in)
	m.complain(find(want.Status.Conditions, v1.NodeReady))
	relabelled := label(want, required(in.Facts))
	relabelled = label(want, labels) || relabelled
	relabelled = provide(want, in.Config) || relabelled
	changed := relabelled || !same(known.Status, want.Status)
	if !changed && !always && m.parts.Clock.Now().Before(m.due) {
		m.tellVolumes(known)
		return nil
	}
	patch, err := statusPatch(known, want)
	if err != nil {
		return err
	}
	updated, err := m.patch(ctx, patch)
	if err != nil {
		return err
	}
	m.spread(changed)
	m.sent(updated)
	m.emit(known.Status, want.Status)
	return nil
}

// spread sets the time of the next heartbeat. After a change it moves by up to half a period, so that nodes that changed together do not
// keep reporting together.
func (m *Manager) spread(changed bool) {
	period := m.config.ReportFrequency
	if changed || m.reported.IsZero() {
		period += time.Duration((rand.Float64() - 0.5) * float64(period))
	}
	m.due = m.parts.Clock.Now().Add(period)
}

func (m *Manager) sent(node *v1.Node) {
	m.last, m.reported = node, m.parts.Clock.Now()
	m.tellVolumes(node)
}

func (m *Manager) tellVolumes(node *v1.Node) {
	if m.parts.Volumes != nil {
		m.parts.Volumes.Reported(node)
	}
}

// gather collects the inputs of Status.
func (m *Manager) gather(ctx context.Context, known v1.NodeStatus) (Inputs, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	in := Inputs{Config: m.config, Known: known}
	var err error
	if in.Facts, err = m.parts.Host.Facts(); err != nil {
		return in, err
	}
	if in.Disk, err = m.parts.Host.NodeDisk(ctx); err != nil {
		return in, err
	}
	if in.Addresses, err = m.parts.Host.Addresses(); err != nil {
		return in, err
	}
	in.Engine, in.EngineErr = m.parts.Engine.Runtime(ctx)
	in.NetworkErr, in.NetworkUnavailable = m.parts.Network.Ready(), m.parts.Network.Unavailable()
	in.ShuttingDown, in.Pressure = m.parts.Shutdown.Begun(), pressureOf(m.parts.Pressure.Conditions())
	if in.EngineErr == nil {
		m.listImages(ctx)
	}
	if m.parts.Volumes != nil {
		in.VolumesInUse = m.parts.Volumes.InUse()
	}
	in.Images, in.Now = m.images, m.parts.Clock.Now()
	return in, nil
}

func (m *Manager) listImages(ctx context.Context) {
	list, err := m.parts.Engine.Images(ctx)
	if err != nil {
		klog.ErrorS(err, "Cannot list images for the node's status")
		return
	}
	if list == nil {
		list = []v1.ContainerImage{}
	}
	m.images = list
}

// emit sends the Events for a change of status that the API server accepted.
func (m *Manager) emit(before, after v1.NodeStatus) {
	for _, t := range transitions(m.config.Name, before, after) {
		klog.InfoS("Node changed", "node", m.config.Name, "reason", t.reason)
		m.event(t.kind, t.reason, t.message)
	}
}

// complain sends an Event that says why the node is not ready, once for each lasting reason.
func (m *Manager) complain(ready *v1.NodeCondition) {
	text, now := "", m.parts.Clock.Now()
	if ready.Status != v1.ConditionTrue {
		text = ready.Message
	}
	switch w := &m.wrong; {
	case text != w.text:
		*w = complaint{text: text, since: now}
	case text != "" && !w.told && now.Sub(w.since) >= patience:
		w.told = true
		m.event(v1.EventTypeWarning, ready.Reason, strings.ToValidUTF8(text[:min(len(text), longestEvent)], ""))
	}
}

func (m *Manager) event(kind, reason, message string) {
	ref := &v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: m.config.Name}
	if m.last != nil {
		ref.UID = m.last.UID
	}
	m.parts.Events.Event(ref, kind, reason, message)
}

// warnOfTaints logs taints that an existing Node lacks. A node must not change its own taints, so an administrator must.
func warnOfTaints(want []v1.Taint, node *v1.Node) {
	for _, t := range want {
		found := false
		for _, have := range node.Spec.Taints {
			found = found || have.Key == t.Key && have.Effect == t.Effect && have.Value == t.Value
		}
		if !found {
			klog.InfoS("Warning: the Node exists without a taint of --register-with-taints, which applies to new Nodes only",
				"node", node.Name, "taint", fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
		}
	}
}
