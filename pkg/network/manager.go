package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// Manager enforces the Plan of this host's pod network. It implements pod.Network and pod.Attacher. All methods but Run may be called concurrently,
// also before Run.
type Manager struct {
	cfg       Config
	parts     Parts
	mode      mode
	maker     Maker
	attacher  pod.Attacher
	places    *placements
	condition *condition
	wake      wake.Signal

	mu    sync.Mutex
	known bool              // a Node has been received
	cidrs []string          // of the Node
	notes map[string]string // annotations of the Node that concern tunnels
	state State             // as applied
	err   error             // why pods cannot start; nil: ready
}

var (
	_ pod.Network  = (*Manager)(nil)
	_ pod.Attacher = (*Manager)(nil)
)

// New checks cfg and returns a Manager that has not touched anything. It chooses the Maker from the table modes.
func New(cfg Config, parts Parts) (*Manager, error) {
	mode, err := modeOf(cfg)
	if err != nil {
		return nil, err
	}
	if _, err := mode.plan(cfg, Facts{}); err != nil {
		return nil, err
	}
	if (cfg.Mode == CNI) != (parts.Plugins != nil) {
		return nil, fmt.Errorf("CNI plugins need network mode %s; the mode is %s", CNI, cfg.Mode)
	}
	if err := cfg.CheckInterfaces(); err != nil {
		return nil, fmt.Errorf("interfaces of pods: %w", err)
	}
	if cfg.ownsLinks() && parts.PodLinks == nil {
		return nil, errors.New("a kubelet that makes the pods' interfaces needs the kernel's")
	}
	if cfg.Platform.OS == "windows" && parts.Windows == nil {
		return nil, errors.New("a Windows host needs its Host Networking Service")
	}
	signal, places := wake.New(), newPlacements(cfg.Mode, parts.Node, parts.Pods)
	maker := mode.maker(shared{Parts: parts, cfg: cfg, places: places, wake: signal})
	return &Manager{cfg: cfg, parts: parts, mode: mode, maker: maker, attacher: maker.Attacher(), places: places, wake: signal,
		condition: &condition{clock: parts.Clock, node: parts.Node, prober: parts.Prober, reports: parts.Reports},
		err:       errors.New("the Node object is not known yet")}, nil
}

// SetNode passes the Node's pod CIDRs and tunnel annotations to the Manager. It does not block; nil is ignored.
func (m *Manager) SetNode(n *v1.Node) {
	if n == nil {
		return
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	m.condition.recall(n)
	notes := vxlan.Known(n.Annotations)
	m.mu.Lock()
	news := !m.known || !slices.Equal(cidrs, m.cidrs) || !maps.Equal(notes, m.notes)
	m.known, m.cidrs, m.notes = true, slices.Clone(cidrs), notes
	m.mu.Unlock()
	if news {
		m.wake.Send()
	}
}

// Kick triggers a comparison soon. Call it after the engine has returned. It does not block.
func (m *Manager) Kick() { m.wake.Send() }

// Joined must be called when a pod has been connected: a Windows l2bridge network needs more policies for it. It does not block.
func (m *Manager) Joined() {
	if m.State().Bridge != nil {
		m.wake.Send()
	}
}

// Join implements pod.Network.
func (m *Manager) Join(*v1.Pod) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return "", fmt.Errorf("network is not ready: %w", m.err)
	}
	return m.state.Join, nil
}

// Ready says why the pod network is not ready, for the Node's conditions; nil: it is.
func (m *Manager) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Unavailable is the Node's condition NetworkUnavailable; nil: leave the Node's condition unchanged.
func (m *Manager) Unavailable() *Condition { return m.condition.current() }

// State returns the last applied state.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Attachments implements pod.Attacher.
func (m *Manager) Attachments(p *v1.Pod, engine pod.Observed) pod.Attachments {
	network, moved, cut := m.places.observe(p, &engine)
	m.mu.Lock()
	ready, join := m.err == nil, m.state.Join
	m.mu.Unlock()
	if network != "" && ready && (network != join && moved || network == join && cut) {
		m.wake.Send()
	}
	return m.attacher.Attachments(p, engine)
}

// Attach implements pod.Attacher.
func (m *Manager) Attach(ctx context.Context, p *v1.Pod, to pod.Member) error {
	return m.attacher.Attach(ctx, p, to)
}

// Detach implements pod.Attacher.
func (m *Manager) Detach(ctx context.Context, from pod.Member) error {
	return m.attacher.Detach(ctx, from)
}

// Run enforces the plan until ctx ends, and then leaves everything in place: pods keep running. It returns nil when ctx and all of its goroutines
// have ended.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { m.maker.Run(ctx) })
	group.Go(func() { m.followReports(ctx) })
	every := interval(m.cfg.Platform)
	hints := wake.New()
	wait, err := m.parts.Host.Watch(ctx, hints)
	group.Go(wait)
	if err != nil {
		klog.ErrorS(err, "Cannot watch the host's network; the pod network is repaired by comparison only", "every", every)
	}
	pace := newPace(m.parts.Clock, m.wake, hints, every, m.reapply)
	defer pace.timer.Stop()
	for {
		err := m.sync(ctx)
		compared := m.parts.Clock.Now()
		after := pace.next(err)
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "The pod network differs from the desired state; repairing it again", "comparedAgainIn", after)
		}
		if pace.wait(ctx, compared, after) != nil {
			return nil
		}
	}
}

// followReports triggers a comparison when the proxy's report changes.
func (m *Manager) followReports(ctx context.Context) {
	if err := m.parts.Reports.Watch(ctx, m.wake.Send); err != nil {
		klog.ErrorS(err, "Cannot watch what the proxy reports; reading it with each comparison", "every", interval(m.cfg.Platform))
	}
}

// reapply restores what the system lost of a valid State.
func (m *Manager) reapply(ctx context.Context) {
	m.mu.Lock()
	state, err := m.state, m.err
	m.mu.Unlock()
	if err != nil {
		return
	}
	if err := m.maker.Reapply(ctx, state); err != nil {
		klog.V(2).ErrorS(err, "The pod network is not repaired yet")
	}
}

// sync compares and repairs everything once, and updates the Node's condition.
func (m *Manager) sync(ctx context.Context) error {
	wrong, err := m.compare(ctx)
	if state := m.State(); m.Ready() == nil && state.Join != "" {
		m.places.report(state.Join)
	}
	if err != nil && wrong.Reason == "" { // may be temporary: no new information
		return err
	}
	return m.condition.judge(ctx, wrong, m.State())
}

// compare repairs everything once. The Condition has a Reason if an administrator must act; an error alone may be temporary.
func (m *Manager) compare(ctx context.Context) (Condition, error) {
	in, known, err := m.input(ctx)
	if err != nil {
		return Condition{}, m.failed(err)
	}
	if !known {
		return Condition{}, nil
	}
	if in.State, err = m.mode.plan(m.cfg, in.Facts); err != nil {
		return m.refused(State{}, &Refusal{rangeInvalid, err})
	}
	if r := in.State.Ready; !r.Ready {
		return m.refused(State{}, &Refusal{r.Reason, errors.New(r.Message)})
	}
	made, err := m.maker.Make(ctx, in)
	var refusal *Refusal
	switch {
	case errors.As(err, &refusal):
		return m.refused(made.State, refusal)
	case err != nil:
		return made.Warning, m.failed(err)
	}
	m.done(made.State)
	return made.Warning, m.maker.Reconnect(ctx, made)
}

// input collects the input of Plan and the Maker. known is false if the mode needs the Node, or ranges of Services, which have not been received yet.
func (m *Manager) input(ctx context.Context) (in Input, known bool, err error) {
	m.mu.Lock()
	in.Annotations, in.Facts.PodCIDRs, known = m.notes, m.cidrs, m.known
	m.mu.Unlock()
	if m.mode.factless || !known {
		return in, m.mode.factless, nil
	}
	if m.parts.Cluster != nil {
		read := false
		if in.Facts.Services, in.Facts.Pods, read = m.parts.Cluster.Ranges(); m.mode.ranges && !read && len(m.cfg.Services) == 0 {
			return in, false, m.waiting(errNoRanges)
		}
	}
	if in.Facts.EngineVersion, err = m.parts.Engine.Version(ctx); err != nil {
		return in, known, err
	}
	if in.Surroundings, err = m.parts.Host.Look(); err != nil {
		klog.ErrorS(err, "Cannot read the host's interfaces and routes; not looking for conflicts with the pod network")
	}
	in.Facts.MTU = in.Surroundings.MTU(m.cfg.NodeIPs) // unknown if the node's address belongs to a router before it
	in.Facts.Adapter = in.Surroundings.Adapter(m.cfg.NodeIPs)
	return in, known, nil
}

// errNoRanges is why pods wait on Windows until the cluster's Services have been read.
var errNoRanges = errors.New("the cluster's Services were not read yet: their ranges are needed for the pods' network")

// waiting records why pods cannot start yet although nothing is wrong.
func (m *Manager) waiting(why error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		m.err = why
	}
	return nil
}

// done records a State that was applied.
func (m *Manager) done(s State) {
	m.mu.Lock()
	if m.err != nil {
		klog.InfoS("The pod network is ready", "network", s.Join, "detail", s.Ready.Message)
	}
	unused := s.unused()
	news := unused != "" && unused != m.state.unused()
	m.state, m.err = s, nil
	m.mu.Unlock()
	if news {
		klog.InfoS("Not using a range of the Node", "detail", unused)
		m.parts.Node.Event(v1.EventTypeWarning, unusedRange, unused)
	}
	m.parts.Node.NetworkChanged(nil)
}

// failed records an error that may be temporary. A network that was once ready stays so: its pods and new ones most likely work.
func (m *Manager) failed(err error) error {
	m.mu.Lock()
	if m.err != nil {
		m.err = err
	}
	ready := m.err
	m.mu.Unlock()
	m.parts.Node.NetworkChanged(ready)
	return err
}

// refused records an error that lasts until an administrator acts. Running pods keep s, unless that is empty.
func (m *Manager) refused(s State, r *Refusal) (Condition, error) {
	m.mu.Lock()
	if s.Join != "" {
		m.state = s
	}
	m.err = r
	m.mu.Unlock()
	m.parts.Node.NetworkChanged(r)
	return Condition{Reason: r.Reason, Message: r.Error()}, r
}
