package learn

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/wake"
)

// Parts are the sources of a Cluster. All are required.
type Parts struct {
	// Services are all Services of the cluster; an error means that they were not read yet.
	Services func() ([]*v1.Service, error)
	Reports  Reports
	// Ask queries a DNS server for the domain in the name of the API server's Service. It returns when ctx ends.
	Ask   func(ctx context.Context, server, apiServer netip.Addr) (string, error)
	Clock clock.Clock
}

// Reports are what the proxy of this host has learned: report.FactsFile.
type Reports interface {
	Read() (report.Facts, error)
	// Watch calls changed after each change until ctx ends, and then returns nil. changed must not block.
	Watch(ctx context.Context, changed func()) error
}

// Cluster maintains what is Known of the cluster. Any goroutine may call its methods.
type Cluster struct {
	flags   Flags
	parts   Parts
	news    wake.Signal
	changed []func() // set before Run
	learnt  chan struct{}
	asked   chan struct{}

	mu      sync.Mutex
	known   Known
	settled bool // the proxy has reported, or its time is over

	// Only Run's goroutine uses these.
	retry wait.Backoff // of DNS queries
	seen  Seen
	of    question  // the one that seen.Domain answers
	since time.Time // when Services were first read
}

// question is a query to a DNS server.
type question struct{ server, apiServer netip.Addr }

const (
	// patience is how long pods initially wait for an answer of the cluster DNS. The DNS may need this node's proxy, which starts at the
	// same time.
	patience = 2 * time.Second
	// reportPatience is how long a proxy that starts with the kubelet has to report.
	reportPatience = 5 * time.Second
	firstRetry     = time.Second
	lastRetry      = 30 * time.Second
	idle           = time.Hour // nothing is expected without an event
)

// New returns a Cluster that only knows flags.
func New(flags Flags, parts Parts) *Cluster {
	return &Cluster{flags: flags, parts: parts, news: wake.New(), learnt: make(chan struct{}), asked: make(chan struct{}), known: Decide(flags, Seen{}), retry: newRetry()}
}

func newRetry() wait.Backoff {
	return wait.Backoff{Duration: firstRetry, Factor: 2, Steps: math.MaxInt, Cap: lastRetry}
}

// OnChange makes Cluster call f after each change of what is Known, and when it is first known. f must not block. Call it before Run.
func (c *Cluster) OnChange(f func()) { c.changed = append(c.changed, f) }

// Known returns what is known now, and whether the cluster's Services were read. The result is read-only.
func (c *Cluster) Known() (known Known, read bool) {
	select {
	case <-c.learnt:
		read = true
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known, read
}

// DNS returns the DNS servers and domain for pods.
func (c *Cluster) DNS() (servers []netip.Addr, domain string) {
	known, _ := c.Known()
	return known.DNS, known.Domain
}

// Ranges returns the ranges of Services and pods. read means that the cluster's Services were read and the proxy had time to report: ranges
// derived only from cluster IPs grow as Services are added.
func (c *Cluster) Ranges() (services, pods []netip.Prefix, read bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known.Services, c.known.Pods, c.settled
}

// Wait waits until DNS is known, or a query to the cluster DNS has failed. The error is ctx's.
func (c *Cluster) Wait(ctx context.Context) error {
	if len(c.flags.DNS) > 0 && c.flags.Domain != "" {
		return nil
	}
	select {
	case <-c.asked:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Service must be called for each added, changed or (gone) deleted Service. It does not block.
func (c *Cluster) Service(s *v1.Service, gone bool) {
	known, read := c.Known()
	inside := func(a netip.Addr) bool {
		return slices.ContainsFunc(known.Services, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	outside := func(a netip.Addr) bool { return !inside(a) }
	if !read || isDNS(s) || isAPIServer(s) || !gone && slices.ContainsFunc(addresses(s), outside) {
		c.news.Send()
	}
}

// Kick triggers a complete update. It does not block.
func (c *Cluster) Kick() { c.news.Send() }

// Run learns until ctx ends, and returns nil after its goroutines have ended.
func (c *Cluster) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		if err := c.parts.Reports.Watch(ctx, c.news.Send); err != nil {
			klog.ErrorS(err, "Cannot watch the cluster settings that the proxy reports; reading them when Services change")
		}
	})
	timer := c.parts.Clock.NewTimer(idle)
	defer timer.Stop()
	for {
		again := c.look(ctx)
		timer.Stop()
		select {
		case <-timer.C():
		default:
		}
		timer.Reset(again)
		select {
		case <-ctx.Done():
			return nil
		case <-c.news:
		case <-timer.C():
		}
	}
}

// look updates what is known, and returns when to look again without an event.
func (c *Cluster) look(ctx context.Context) (again time.Duration) {
	var err error
	if c.seen.Services, err = c.parts.Services(); err != nil {
		return firstRetry // an event arrives earlier
	}
	defer func() { c.seen.Services = nil }() // the informer owns them
	if c.seen.Reported, err = c.parts.Reports.Read(); err != nil {
		klog.ErrorS(err, "Cannot read the cluster settings that the proxy reports; using Services only")
	}
	now := c.parts.Clock.Now()
	if c.since.IsZero() {
		c.since = now
	}
	left := reportPatience - now.Sub(c.since)
	if len(c.seen.Reported.Services)+len(c.flags.Services) > 0 {
		left = 0
	}
	c.publish(left <= 0)
	before := c.seen.Domain
	if again, err = c.askDomain(ctx); err != nil {
		klog.V(2).ErrorS(err, "The cluster's domain is not known yet", "retryIn", again)
	}
	if c.seen.Domain != before {
		c.publish(left <= 0)
	}
	if first := closeOnce(c.asked); first && ctx.Err() == nil {
		c.say(nil)
	}
	if left > 0 {
		again = min(again, left)
	}
	return again
}

// askDomain queries the cluster DNS, unless it has already answered. While queries fail, an earlier answer stays.
func (c *Cluster) askDomain(ctx context.Context) (again time.Duration, err error) {
	known, _ := c.Known()
	q := question{apiServer: known.APIServer}
	if len(known.DNS) > 0 {
		q.server = known.DNS[0]
	}
	if c.flags.Domain != "" || !q.server.IsValid() || !q.apiServer.IsValid() || q == c.of {
		return idle, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	domain, err := c.parts.Ask(ctx, q.server, q.apiServer)
	if err != nil {
		return c.retry.Step(), err
	}
	c.seen.Domain, c.of, c.retry = domain, q, newRetry()
	return idle, nil
}

// publish updates what is known. Only Run's goroutine calls it.
func (c *Cluster) publish(settled bool) {
	known := Decide(c.flags, c.seen)
	c.mu.Lock()
	before := c.known
	c.known = known
	news := settled && !c.settled
	c.settled = c.settled || settled
	c.mu.Unlock()
	if news = closeOnce(c.learnt) || news; !news && slices.Equal(known.Lines, before.Lines) {
		return
	}
	select {
	case <-c.asked: // until then, missing facts may arrive at any moment
		c.say(before.Lines)
	default:
	}
	for _, f := range c.changed {
		f()
	}
}

// say logs the changes since before.
func (c *Cluster) say(before []Line) {
	known, _ := c.Known()
	for i, line := range known.Lines {
		switch {
		case i < len(before) && line == before[i]:
		case line.Fix != "":
			klog.InfoS("Cannot detect a setting of the cluster", "what", line.What, "value", line.Value, "reason", line.From, "fix", line.Fix)
		default:
			klog.InfoS("Detected a setting of the cluster", "what", line.What, "value", line.Value, "from", line.From)
		}
	}
}

// closeOnce closes a channel that only the caller's goroutine closes, and reports whether it was open.
func closeOnce(c chan struct{}) bool {
	select {
	case <-c:
		return false
	default:
		close(c)
		return true
	}
}
