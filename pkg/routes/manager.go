package routes

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// Config is the configuration of a Manager.
type Config struct {
	Mode    Mode
	Node    string // this node's name
	Options Options
	// Compare is how often the table is compared without a hint that it changed; 0: 10 s.
	Compare time.Duration
}

// Parts are the dependencies of a Manager.
type Parts struct {
	Table RoutingTable
	Clock clock.Clock
	// Facts are known from sources other than Nodes; nil: none.
	Facts *Facts
	// Problem is called once for each Problem that lasted until a comparison, and again if it returns after an hour; at
	// most once in five minutes for one Node and reason, whatever else is wrong by then. nil: logged only. It must not
	// block.
	Problem func(Problem)
	// Here is called with all Problems of this host itself: after the first comparison, and when they change. After an
	// error it is called again at the next comparison. nil: not called.
	Here func([]Problem) error
	// Pods is called with the ranges of the Nodes that have routes, sorted, when they change; nil: not called. It must
	// not block for long.
	Pods func([]netip.Prefix)
}

// Manager keeps this host's routes in line with the Nodes. The goroutine of Run owns all its state.
type Manager struct {
	cfg       Config
	parts     Parts
	reported  map[Problem]bool // current Problems; true: lasted until a comparison
	announced map[Problem]time.Time
	quiet     map[topic]time.Time // not reported until then
	before    *State              // the last plan; nil: none
	retry     wait.Backoff        // after consecutive failures
	here      []Problem           // argument of the last call of Parts.Here
	knowsHere bool                // Parts.Here was called successfully
	told      bool                // Parts.Pods was called
}

// topic is the key by which reports are rate-limited.
type topic struct{ node, reason string }

const (
	defaultCompare = 10 * time.Second
	firstRetry     = time.Second
	repeatAfter    = time.Hour       // for a Problem that returns
	betweenOfTopic = 5 * time.Minute // between two reports of one topic
)

// New returns a Manager that has changed nothing yet.
func New(cfg Config, parts Parts) *Manager {
	if cfg.Compare == 0 {
		cfg.Compare = defaultCompare
	}
	if parts.Problem == nil {
		parts.Problem = func(Problem) {}
	}
	if parts.Facts == nil {
		parts.Facts = NewFacts()
	}
	return &Manager{cfg: cfg, parts: parts, retry: cfg.firstRetry(), reported: map[Problem]bool{}, announced: map[Problem]time.Time{}, quiet: map[topic]time.Time{}}
}

// firstRetry is the back-off after a failure, capped at the interval of comparisons.
func (c *Config) firstRetry() wait.Backoff {
	return wait.Backoff{Duration: min(firstRetry, c.Compare), Factor: 2, Steps: math.MaxInt, Cap: c.Compare}
}

// Run maintains the routes until ctx ends and then leaves them in place, so that pods keep their connections while the
// proxy restarts. The caller starts nodes, an informer of all Nodes. Run changes nothing before its first list is
// complete. In modes that leave routes to others, it removes what an earlier run wrote and keeps watching so that none
// of our routes returns. It returns nil when ctx ended.
func (m *Manager) Run(ctx context.Context, nodes cache.SharedIndexInformer) error {
	dirty := wake.New()
	reg, err := nodes.AddEventHandler(handler(dirty))
	if err != nil {
		return fmt.Errorf("cannot watch nodes: %w", err)
	}
	defer nodes.RemoveEventHandler(reg)
	if !cache.WaitForCacheSync(ctx.Done(), reg.HasSynced) {
		return nil
	}
	changes, err := m.parts.Table.Changes(ctx)
	if err != nil {
		klog.ErrorS(err, "Cannot watch the routing table; comparing it on a timer only", "every", m.cfg.Compare)
	}
	timer := m.parts.Clock.NewTimer(m.cfg.Compare)
	defer timer.Stop()
	compared := false
	var due time.Time // of the next comparison; a Node that changes constantly does not delay it
	for {
		problems, wait, known := m.pass(ctx, list(nodes))
		if known {
			m.report(problems, compared)
		}
		if now := m.parts.Clock.Now(); compared || due.IsZero() || now.Add(wait).Before(due) {
			due = now.Add(wait)
		}
		if !timer.Stop() {
			select {
			case <-timer.C():
			default:
			}
		}
		timer.Reset(max(due.Sub(m.parts.Clock.Now()), time.Nanosecond))
		compared = false
		select {
		case <-ctx.Done():
			return nil
		case <-dirty:
		case <-m.parts.Facts.changed:
		case _, ok := <-changes:
			if !ok {
				changes = nil
			}
		case <-timer.C():
			compared = true
		}
	}
}

// pass brings the host to what the nodes say, after the checks of Plan. It returns the problems, whether they are
// known, and when to look again.
func (m *Manager) pass(ctx context.Context, nodes []*v1.Node) (problems []Problem, wait time.Duration, known bool) {
	host, err := m.parts.Table.List(ctx)
	if err != nil {
		wait, _, _ = m.outcome(ctx, fmt.Errorf("%w: %w", errUnlisted, err))
		return nil, wait, false
	}
	opts := m.cfg.Options
	m.parts.Facts.fill(&opts.Known)
	opts.Known.Networks = host.Networks
	if m.before == nil {
		before := host.before()
		m.before = &before
	}
	opts.Known.Before = *m.before
	state, problems := Plan(m.cfg.Mode, m.cfg.Node, nodes, opts)
	m.tellPods(state)
	m.before = &state
	d, err := bring(ctx, m.parts.Table, host, state)
	if !d.Empty() {
		klog.InfoS("Changed routes to other nodes", "removed", len(d.Remove), "replaced", len(d.Replace), "added", len(d.Add), "total", len(state.Routes),
			"peers", len(d.SetPeers)+len(d.RemovePeers))
	}
	wait, inTheWay, known := m.outcome(ctx, err)
	return append(problems, inTheWay...), wait, known
}

// outcome returns when to look again, and the foreign routes in the way of ours, if known.
func (m *Manager) outcome(ctx context.Context, err error) (wait time.Duration, inTheWay []Problem, known bool) {
	if err == nil {
		m.retry = m.cfg.firstRetry()
		return m.cfg.Compare, nil, true
	}
	if ctx.Err() != nil {
		return m.cfg.Compare, nil, false
	}
	wait = m.retry.Step()
	klog.ErrorS(err, "Cannot write all routes to other nodes; retrying", "retryIn", wait)
	return wait, conflicts(err), true
}

// conflicts extracts other programs' routes from an error of Apply.
func conflicts(err error) (out []Problem) {
	switch e := err.(type) { //nolint:errorlint // errors.As would stop at the first
	case *Conflict:
		return []Problem{{Node: e.Route.Node, Reason: ForeignRoute, Message: e.Error(), Here: true, To: e.Route.Dst}}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			out = append(out, conflicts(one)...)
		}
	}
	return out
}

// report passes on new problems. A node often has no pod CIDR for a moment after it was registered, so a problem counts
// only if it is still there at a comparison.
func (m *Manager) report(problems []Problem, compared bool) {
	now := make(map[Problem]bool, len(problems))
	for _, p := range problems {
		now[p] = m.reported[p] || compared
		if compared {
			m.announce(p)
		}
	}
	m.reported = now
	m.reportHere(problems, compared)
}

// announce passes on a problem unless it was reported already or its topic was reported within betweenOfTopic.
func (m *Manager) announce(p Problem) {
	now, of := m.parts.Clock.Now(), topic{p.Node, p.Reason}
	if at, was := m.announced[p]; was && now.Sub(at) < repeatAfter {
		m.announced[p] = now
		return
	}
	if now.Before(m.quiet[of]) {
		return
	}
	maps.DeleteFunc(m.announced, func(_ Problem, at time.Time) bool { return now.Sub(at) >= repeatAfter })
	maps.DeleteFunc(m.quiet, func(_ topic, until time.Time) bool { return !now.Before(until) })
	m.announced[p], m.quiet[of] = now, now.Add(betweenOfTopic)
	klog.InfoS("No route to a node's pods", "node", klog.KRef("", p.Node), "reason", p.Reason, "message", p.Message)
	m.parts.Problem(p)
}

// reportHere passes on this host's own problems. Those that an earlier run reported stay until the first comparison.
func (m *Manager) reportHere(problems []Problem, compared bool) {
	here := slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return !p.Here || !m.reported[p] })
	if m.parts.Here == nil || !m.knowsHere && !compared || m.knowsHere && slices.Equal(here, m.here) {
		return
	}
	if err := m.parts.Here(here); err != nil {
		klog.ErrorS(err, "Cannot pass problems with routes to other nodes to the kubelet; retrying")
		m.knowsHere = false
		return
	}
	m.here, m.knowsHere = here, true
}

// tellPods passes on the ranges of pods that have routes.
func (m *Manager) tellPods(state State) {
	same := func(a, b Route) bool { return a.Dst == b.Dst }
	if m.parts.Pods == nil || m.told && slices.EqualFunc(state.Routes, m.before.Routes, same) {
		return
	}
	m.told = true
	ranges := make([]netip.Prefix, 0, len(state.Routes))
	for _, r := range state.Routes {
		ranges = append(ranges, r.Dst)
	}
	m.parts.Pods(ranges)
}

// Cleanup removes all our routes. Idempotent.
func Cleanup(ctx context.Context, t RoutingTable) error {
	_, err := Apply(ctx, t, State{})
	return err
}

// handler sends dirty when something that Plan reads changed; status heartbeats do not.
func handler(dirty wake.Signal) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { dirty.Send() },
		DeleteFunc: func(any) { dirty.Send() },
		UpdateFunc: func(was, is any) {
			a, ok1 := was.(*v1.Node)
			b, ok2 := is.(*v1.Node)
			if !ok1 || !ok2 || a.UID != b.UID || a.Spec.PodCIDR != b.Spec.PodCIDR ||
				!reflect.DeepEqual(a.Spec.PodCIDRs, b.Spec.PodCIDRs) || !reflect.DeepEqual(a.Status.Addresses, b.Status.Addresses) ||
				!reflect.DeepEqual(vxlan.Known(a.Annotations), vxlan.Known(b.Annotations)) {
				dirty.Send()
			}
		},
	}
}

func list(nodes cache.SharedIndexInformer) []*v1.Node {
	objs := nodes.GetStore().List()
	out := make([]*v1.Node, 0, len(objs))
	for _, o := range objs {
		if n, ok := o.(*v1.Node); ok {
			out = append(out, n)
		}
	}
	return out
}
