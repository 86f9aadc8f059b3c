package start

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
)

// Back-off of pulls, per pod and image, as in upstream.
const (
	pullBackOffMin = 10 * time.Second
	pullBackOffMax = 300 * time.Second
	// pullErrorShown is how long a failed pull shows its own reason before ImagePullBackOff.
	pullErrorShown = time.Second
)

// puller pulls images. Concurrent requests for an image with the same credentials share one pull, and the number of parallel pulls is
// limited as configured. It also keeps the back-off of pods whose pulls fail.
type puller struct {
	images  pod.Images
	clock   clock.PassiveClock
	slots   chan struct{}           // nil: no limit
	limiter flowcontrol.RateLimiter // nil: no limit

	mu       sync.Mutex
	flights  map[string]*flight
	failures map[pullKey]pullFailure
	delays   workqueue.TypedRateLimiter[pullKey] // delay before the next pull, by number of failures in a row
}

type pullKey struct {
	uid   types.UID
	image string
}

type pullFailure struct {
	delay   time.Duration // counted from since
	since   time.Time
	message string
}

// flight is one pull in progress. It ends when its last waiter leaves.
type flight struct {
	key     string
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int // guarded by puller.mu
	result  pullResult
	err     error
}

// pullResult is the result of a pull.
type pullResult struct {
	image pod.Image
	used  int           // index of the credential; -1: none
	took  time.Duration // without the wait for other pulls
}

func newPuller(cfg Config, images pod.Images, clk clock.PassiveClock) *puller {
	p := &puller{
		images: images, clock: clk, flights: map[string]*flight{}, failures: map[pullKey]pullFailure{},
		delays: workqueue.NewTypedItemExponentialFailureRateLimiter[pullKey](pullBackOffMin, pullBackOffMax),
	}
	slots := cfg.MaxParallelPulls
	if cfg.SerializePulls {
		slots = 1
	}
	if slots > 0 {
		p.slots = make(chan struct{}, slots)
	}
	if cfg.PullQPS > 0 {
		p.limiter = flowcontrol.NewTokenBucketRateLimiter(cfg.PullQPS, max(cfg.PullBurst, 1))
	}
	return p
}

// pull pulls an image, unless ctx has already ended.
func (p *puller) pull(ctx context.Context, name string, creds []pod.Credential) (pullResult, error) {
	if ctx.Err() != nil {
		return pullResult{}, context.Cause(ctx)
	}
	f := p.join(name, creds)
	return p.wait(ctx, f)
}

// wait returns when the flight or ctx ends, and leaves the flight.
func (p *puller) wait(ctx context.Context, f *flight) (pullResult, error) {
	defer p.leave(f)
	select {
	case <-f.done:
		return f.result, f.err
	case <-ctx.Done():
		return pullResult{}, context.Cause(ctx)
	}
}

// join returns the flight for an image and starts one if there is none. Equal credentials share a flight, wherever they come from. The
// caller must wait.
func (p *puller) join(name string, creds []pod.Credential) *flight {
	secret, _ := json.Marshal(creds) // a struct of strings cannot fail; the key lives as long as the pull
	key := name + "\x00" + string(secret)
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flights[key]
	if f == nil {
		ctx, cancel := context.WithCancel(context.Background())
		f = &flight{key: key, done: make(chan struct{}), cancel: cancel}
		p.flights[key] = f
		go p.fly(ctx, f, name, creds) // it outlives single waiters: the last one to leave cancels it, and each waits for f.done or its own ctx
	}
	f.waiters++
	return f
}

func (p *puller) leave(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
		p.forget(f) // later callers need a pull that is not cancelled
	}
}

func (p *puller) fly(ctx context.Context, f *flight, name string, creds []pod.Credential) {
	defer close(f.done)
	f.result, f.err = p.fetch(ctx, name, creds)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(f) // a later request starts a new pull
}

// forget requires p.mu.
func (p *puller) forget(f *flight) {
	if p.flights[f.key] == f {
		delete(p.flights, f.key)
	}
}

func (p *puller) fetch(ctx context.Context, name string, creds []pod.Credential) (pullResult, error) {
	if p.slots != nil {
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
		case <-ctx.Done():
			return pullResult{}, ctx.Err()
		}
	}
	if p.limiter != nil {
		if err := p.limiter.Wait(ctx); err != nil {
			return pullResult{}, err
		}
	}
	start := p.clock.Now()
	image, used, err := p.images.Pull(ctx, name, creds)
	return pullResult{image, used, p.clock.Since(start)}, err
}

// backedOff returns how long the next pull must wait, and why; 0: no wait.
func (p *puller) backedOff(key pullKey) (wait time.Duration, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, failed := p.failures[key]
	if !failed {
		return 0, ""
	}
	return max(0, f.delay-p.clock.Since(f.since)), f.message
}

// failed increases the back-off. It drops failures that are old, so that removed pods leave nothing behind.
func (p *puller) failed(key pullKey, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, f := range p.failures {
		if p.clock.Since(f.since) > 2*pullBackOffMax {
			p.forgive(k)
		}
	}
	p.failures[key] = pullFailure{delay: p.delays.When(key), since: p.clock.Now(), message: message}
}

func (p *puller) succeeded(key pullKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgive(key)
}

// forgive requires p.mu.
func (p *puller) forgive(key pullKey) {
	delete(p.failures, key)
	p.delays.Forget(key)
}
