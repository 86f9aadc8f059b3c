package server

import (
	"context"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

const (
	memoEntries  = 8192
	fetchTimeout = 30 * time.Second // of one question to the API server with its retries
)

// memo remembers the API server's answers for a time and asks each question once, however many wait for it. Errors are not remembered. A
// question for which there is no room beside others is errBusy.
type memo[T any] struct {
	answers *cache.LRUExpireCache
	flights singleflight.Group
	backoff wait.Backoff
	room    bound // for questions under way
}

func newMemo[T any](clock clock.PassiveClock) *memo[T] {
	return &memo[T]{
		answers: cache.NewLRUExpireCacheWithClock(memoEntries, clock),
		backoff: wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5},
		room:    make(bound, maxQuestions),
	}
}

// get returns the answer for key, from memory or by ask, which says how long it holds (0: not at all). ask does not end with ctx, since
// others may wait for it too.
func (m *memo[T]) get(ctx context.Context, key string, ask func(context.Context) (T, time.Duration, error)) (T, error) {
	var none T
	if answer, ok := m.answers.Get(key); ok {
		return answer.(T), nil
	}
	flight := m.flights.DoChan(key, func() (any, error) {
		if answer, ok := m.answers.Get(key); ok { // another flight ended between our look and our start
			return answer, nil
		}
		if !m.room.enter() {
			return none, errBusy
		}
		defer m.room.leave()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		var answer T
		var holds time.Duration
		err := retry(ctx, m.backoff, func() (err error) {
			answer, holds, err = ask(ctx)
			return err
		})
		if err == nil && holds > 0 {
			m.answers.Add(key, answer, holds)
		}
		return answer, err
	})
	select {
	case result := <-flight:
		if result.Err != nil {
			return none, result.Err
		}
		return result.Val.(T), nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// retry calls again after errors that pass by themselves, and returns the last one.
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
