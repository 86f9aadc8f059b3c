package server

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

const (
	goodEntries    = 8192
	badEntries     = 1024
	regularEntries = 8192
	regularTTL     = 24 * time.Hour   // of having been accepted, which only improves the place in the queue
	fetchTimeout   = 30 * time.Second // for one question to the API server including retries
)

// memo caches the API server's answers and asks each question once, however many requests from one source wait for it. It does not cache errors.
// Rejections have a separate cache, so that they cannot evict accepted entries.
type memo[T any] struct {
	good, bad *cache.LRUExpireCache
	flights   singleflight.Group
	backoff   wait.Backoff
}

// answer is an answer of the API server.
type answer[T any] struct {
	value T
	good  bool
	holds time.Duration // 0: not cached
}

// asker is the source of a question, and the queue in which it waits.
type asker struct {
	turns  *turns
	source string
	from   *standing
}

func newMemo[T any](clock clock.PassiveClock) *memo[T] {
	return &memo[T]{
		good:    cache.NewLRUExpireCacheWithClock(goodEntries, clock),
		bad:     cache.NewLRUExpireCacheWithClock(badEntries, clock),
		backoff: wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5},
	}
}

func (m *memo[T]) remembered(key string) (answer[T], bool) {
	for _, answers := range []*cache.LRUExpireCache{m.good, m.bad} {
		if known, ok := answers.Get(key); ok {
			return known.(answer[T]), true
		}
	}
	return answer[T]{}, false
}

func (m *memo[T]) remember(key string, a answer[T]) {
	switch {
	case a.holds <= 0:
	case a.good:
		m.good.Add(key, a, a.holds)
	default:
		m.bad.Add(key, a, a.holds)
	}
}

// errLeft says that the request that asked on behalf of others ended before its turn.
var errLeft = errors.New("the client is gone")

// get returns the answer for key, from the cache or by calling ask in the asker's turn. A started call does not end with ctx, since other requests
// may wait for it. errBusy: there was no turn in time.
func (m *memo[T]) get(ctx context.Context, key string, by asker, ask func(context.Context) (answer[T], error)) (answer[T], error) {
	for {
		if known, ok := m.remembered(key); ok {
			return known, nil
		}
		// By source, so that no source waits in another's line.
		flight := m.flights.DoChan(by.source+"\x00"+key, func() (any, error) { return m.ask(ctx, key, by, ask) })
		select {
		case result := <-flight:
			if errors.Is(result.Err, errLeft) && ctx.Err() == nil {
				continue
			}
			return result.Val.(answer[T]), result.Err
		case <-ctx.Done():
			return answer[T]{}, ctx.Err()
		}
	}
}

func (m *memo[T]) ask(ctx context.Context, key string, by asker, ask func(context.Context) (answer[T], error)) (got answer[T], err error) {
	if known, ok := m.remembered(key); ok { // another flight ended between our check and our start
		return known, nil
	}
	leave, err := by.turns.enter(ctx, by.source, by.from)
	if err != nil {
		if ctx.Err() != nil {
			err = errLeft
		}
		return got, err
	}
	defer func() { leave(got.good) }()
	if known, ok := m.remembered(key); ok { // another source asked the same meanwhile
		return known, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	err = retry(ctx, m.backoff, func() (err error) {
		got, err = ask(ctx)
		return err
	})
	if err != nil {
		return answer[T]{}, err
	}
	m.remember(key, got)
	return got, nil
}

// retry repeats call after temporary errors, and returns the last one.
func retry(ctx context.Context, backoff wait.Backoff, call func() error) error {
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(context.Context) (bool, error) {
		last = call()
		if last != nil && !transient(last) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

func transient(err error) bool {
	_, wait := apierrors.SuggestsClientDelay(err)
	return wait || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}
