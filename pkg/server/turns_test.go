package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// state is the state of a waiter.
func state(w *waiter) string {
	select {
	case granted := <-w.turn:
		w.turn <- granted
		if granted {
			return "asks"
		}
		return "sent away"
	default:
		return "waits"
	}
}

func expect(t *testing.T, name string, w *waiter, want string) {
	t.Helper()
	if got := state(w); got != want {
		t.Errorf("%s: %s, want: %s", name, got, want)
	}
}

// TestTurns: places rotate among the sources instead of going to the first arrivals.
func TestTurns(t *testing.T) {
	turns := newTurns(turnLimits{places: 3, perSource: 2, waiting: 6, waitPerLine: 4})
	var flood []*waiter
	for range 7 {
		flood = append(flood, turns.arrive("flood", &standing{}))
	}
	for i, want := range []string{"asks", "asks", "waits", "waits", "waits", "waits", "sent away"} {
		expect(t, fmt.Sprint("flood ", i), flood[i], want)
	}
	b1, c1 := turns.arrive("b", &standing{}), turns.arrive("c", &standing{})
	expect(t, "b with a free place", b1, "asks")
	expect(t, "c", c1, "waits")
	d1, e1 := turns.arrive("d", &standing{}), turns.arrive("e", &standing{}) // now one too many wait: the last of the longest line is rejected
	expect(t, "the flood's last", flood[5], "sent away")
	expect(t, "e, which came when there was no room", e1, "waits")
	for _, next := range []struct {
		name, leaves string
		who          *waiter
	}{{"flood", "flood", flood[2]}, {"c", "b", c1}, {"d", "flood", d1}, {"e", "c", e1}, {"flood again", "d", flood[3]}} {
		expect(t, next.name+" before its turn", next.who, "waits")
		turns.leaver(next.leaves, &standing{})(true)
		expect(t, next.name+" in its turn", next.who, "asks")
	}
}

// TestTurnBehindTheFlood: a client behind the address of the flood gets its turn after a limited number of others, although each connection of the
// flood is new and more arrive than may wait.
func TestTurnBehindTheFlood(t *testing.T) {
	const perLine = 16
	turns := newTurns(turnLimits{places: 4, perSource: 2, waiting: 100, waitPerLine: perLine})
	flood := func(n int) {
		for range n {
			turns.arrive("nat", &standing{})
		}
	}
	flood(10 * perLine)
	client, steps := &standing{}, 0
	mine := turns.arrive("nat", client)
	expect(t, "the client, at first", mine, "sent away")
	for ; state(mine) != "asks" && steps < 1000; steps++ {
		turns.leaver("nat", &standing{})(false)
		flood(10)
		if state(mine) == "sent away" {
			mine = turns.arrive("nat", client)
		}
	}
	if steps > perLine+1 {
		t.Errorf("its turn came after %d others, want %d at most", steps, perLine+1)
	}

	// A connection that already had a turn comes after all that had none.
	greedy := &standing{asked: 5}
	last := turns.arrive("quiet", &standing{}) // takes a place
	expect(t, "quiet", last, "asks")
	turns.arrive("quiet", &standing{})
	first, second := turns.arrive("quiet", greedy), turns.arrive("quiet", &standing{})
	turns.leaver("quiet", &standing{})(true)
	expect(t, "the greedy one", first, "waits")
	expect(t, "the new one", second, "asks")
}

// TestHold: a rejection keeps its place until the hold is over; a good answer, or leaving without an answer, does not.
func TestHold(t *testing.T) {
	turns := newTurns(turnLimits{places: 1, perSource: 1, waiting: 9, waitPerLine: 9, patience: time.Hour, hold: time.Second})
	var over []func()
	turns.after = func(_ time.Duration, f func()) { over = append(over, f) }
	from := &standing{}
	leave, err := turns.enter(t.Context(), "a", from)
	if err != nil || from.asked != 1 {
		t.Fatal(err, from)
	}
	next := turns.arrive("b", &standing{})
	leave(false)
	expect(t, "during the hold", next, "waits")
	over[0]()
	expect(t, "after the hold", next, "asks")
	good := turns.arrive("c", &standing{})
	turns.leaver("b", &standing{})(true)
	expect(t, "after a good answer", good, "asks")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.enter(ctx, "d", &standing{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that is gone: %v", err)
	}
	turns.leaver("c", &standing{})(true)
	if turns.taken != 0 || turns.waiting != 0 || len(turns.lines)+len(turns.ring) != 0 {
		t.Errorf("something is left: %d taken, %d wait, %v", turns.taken, turns.waiting, turns.lines)
	}
	turns.limits.patience = 0
	turns.limits.places = 0
	if _, err := turns.enter(t.Context(), "e", &standing{}); !errors.Is(err, errBusy) {
		t.Errorf("no place came free: %v", err)
	}
}

func TestSourceOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7:4711": "192.0.2.7", "[::ffff:192.0.2.7]:1": "192.0.2.7", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64", "[2001:db8:1:2::9]:2": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1": "fe80::/64", "@": "@",
	} {
		if got := sourceOf(remote); got != want {
			t.Errorf("%s: got %s, want %s", remote, got, want)
		}
	}
}

// stepwise is a TokenReviewer that answers each token of a flood only on command.
type stepwise struct {
	tokenReviews
	step chan struct{}
}

func (s stepwise) Create(ctx context.Context, review *authenticationv1.TokenReview, options metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	if strings.HasPrefix(review.Spec.Token, "flood-") {
		<-s.step
	}
	return s.tokenReviews.Create(ctx, review, options)
}

// count is the number of arrivals.
func (t *turns) count() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.arrived
}

// waits says whether a request on that connection is waiting.
func (t *turns) waits(from *standing) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lines {
		if slices.ContainsFunc(l.waiting, func(w *waiter) bool { return w.from == from }) {
			return true
		}
	}
	return false
}

// TestFlood: 10,000 bad tokens lock no client out: a known client is answered from the cache, or has a separate queue, and a new one gets its turn
// after a limited number of the flood's, even behind the same address.
func TestFlood(t *testing.T) {
	const requests, sources = 10000, 40
	step := make(chan struct{})
	r := newRig(t, func(_ *Config, parts *Parts) { parts.TokenReviews = stepwise{parts.TokenReviews.(tokenReviews), step} })
	r.api.tokens["new-token"], r.api.tokens["other-token"] = "root", "root"
	strangers := r.server.authn.strangers
	strangers.after, strangers.limits.patience = func(_ time.Duration, f func()) { go f() }, time.Hour
	ask := func(token, remote string, ctx context.Context) int {
		request, answer := httptest.NewRequestWithContext(ctx, "GET", "/pods", nil), httptest.NewRecorder()
		request.Header.Set("Authorization", "Bearer "+token)
		request.RemoteAddr = remote
		r.server.http.Handler.ServeHTTP(answer, request)
		return answer.Code
	}
	source := func(i int) string { return fmt.Sprintf("198.51.100.%d:4711", i%sources) }
	if got := ask("root-token", source(1), t.Context()); got != http.StatusOK {
		t.Fatalf("before: %d", got)
	}

	answers := make(chan int, requests)
	var flood sync.WaitGroup
	defer flood.Wait()
	defer close(step)
	for i := range requests {
		flood.Go(func() { answers <- ask(fmt.Sprint("flood-", i), source(i), t.Context()) })
		// One more than may wait has one refused. To await that bounds the goroutines: the race detector ends a program with more than 8128.
		if i >= strangers.limits.places+strangers.limits.waiting {
			if got := <-answers; got != http.StatusTooManyRequests {
				t.Fatalf("a bad token: %d", got)
			}
		}
	}

	if got, want := r.limited(limitNewTokens), requests-strangers.limits.places-strangers.limits.waiting; got < want {
		t.Errorf("%d refused requests are counted, want at least %d", got, want)
	}
	before := len(r.api.log())
	if got := ask("root-token", source(1), t.Context()); got != http.StatusOK || len(r.api.log()) != before {
		t.Errorf("who is known: %d after %q", got, r.api.log()[before:])
	}
	for _, key := range r.server.authn.tokens.good.Keys() { // expires them
		r.server.authn.tokens.good.Remove(key)
	}
	if got := ask("root-token", source(1), t.Context()); got != http.StatusOK || strings.Count(r.api.log()[before:], "token") != 1 {
		t.Errorf("who was known: %d after %q", got, r.api.log()[before:])
	}
	limits := strangers.limits
	for _, test := range []struct {
		name, token, remote string
		steps               int // maximum
	}{
		{"from elsewhere", "new-token", "203.0.113.1:1", sources + 1 + 2*limits.places},
		{"behind the flood", "other-token", source(3), (sources+1)*(limits.waiting/sources+1) + 2*limits.places},
	} {
		connection, done, steps := context.WithValue(t.Context(), visitorKey{}, &visitor{}), make(chan int, 1), 0
		again := func() {
			before := strangers.count()
			go func() { done <- ask(test.token, test.remote, connection) }()
			for strangers.count() == before {
				runtime.Gosched()
			}
		}
		again()
		for code := 0; code != http.StatusOK; {
			if strangers.waits(&visitorOf(connection).stranger) {
				select {
				case step <- struct{}{}:
					steps++
					continue
				case code = <-done: // the last step gave it its turn
				}
			} else {
				code = <-done
			}
			if code == http.StatusTooManyRequests { // its line is full
				step <- struct{}{}
				steps++
				again()
			} else if code != http.StatusOK {
				t.Fatalf("%s: %d", test.name, code)
			}
		}
		if steps > test.steps {
			t.Errorf("%s: its turn came after %d others, want %d at most", test.name, steps, test.steps)
		}
		t.Logf("%s: after %d others", test.name, steps)
	}
}

// TestBadAnswersApart: rejections evict no good answer from the cache, and an overlong token is not reviewed.
func TestBadAnswersApart(t *testing.T) {
	g := newGate(t, Authentication{Webhook: true})
	g.authn.strangers = newTurns(turnLimits{places: 1, perSource: 1, waiting: 1, waitPerLine: 1, patience: time.Hour})
	if got := g.who("Bearer good-token"); !strings.HasPrefix(got, "reader") {
		t.Fatal(got)
	}
	for i := range goodEntries + 1 {
		if got := g.who(fmt.Sprint("Bearer bad-", i)); got != "error: invalid bearer token" {
			t.Fatal(got)
		}
	}
	asked := len(g.api.asked)
	if got := g.who("Bearer good-token"); !strings.HasPrefix(got, "reader") || len(g.api.asked) != asked {
		t.Errorf("got %s after %d questions, want none", got, len(g.api.asked)-asked)
	}
	if got := g.who("Bearer " + strings.Repeat("x", maxToken+1)); got != "error: the bearer token has 16385 bytes, want at most 16384" || len(g.api.asked) != asked {
		t.Errorf("a long token: %s after %d questions", got, len(g.api.asked)-asked)
	}
}

// TestQuestionLimit: many questions about one user's rights do not block those about others'.
func TestQuestionLimit(t *testing.T) {
	g := newGate(t, Authentication{Webhook: true})
	for range accessTurns.places + accessTurns.waiting {
		g.authz.turns.arrive("tenant", &standing{})
	}
	if allowed, err := g.authz.authorize(t.Context(), &identity{Name: "reader"}, "get", "metrics"); !allowed || err != nil {
		t.Errorf("another user: %t, %v", allowed, err)
	}
	if allowed, err := g.authz.authorize(t.Context(), &identity{Name: "tenant"}, "get", "metrics"); allowed || !errors.Is(err, errBusy) {
		t.Errorf("the user with too many requests: %t, %v", allowed, err)
	}
}
