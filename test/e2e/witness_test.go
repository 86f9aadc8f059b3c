package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/winkube/winkube/test/lab"
)

// witness follows an engine's events and checks that some things never happen to a container, whatever happens to the
// agent: two parallel lives of one container, two sandboxes of one pod, a repeated attempt or init container, an
// unrequested stop.
type witness struct {
	t    *testing.T
	stop func()

	mu     sync.Mutex
	lives  map[string]*life // by container ID
	mortal map[string]bool  // by pod UID: its containers may end
	waits  []*eventWait
	wrong  []string
	counts map[string]int // of events by action
}

// life is one container: app or sandbox.
type life struct {
	id, uid, pod, name, attempt, sandbox string
	init                                 bool // a regular init container: after success it must not run again in its sandbox
	starts                               int
	running                              bool
	started, died                        time.Time
	exit                                 string
}

// eventWait is closed by the next matching event.
type eventWait struct {
	match func(action string) bool
	seen  chan struct{}
}

// watchEngine follows a host's engine until the test ends. It only considers pods of the namespace, and network events.
func watchEngine(t *testing.T, host *lab.Host, namespace string) *witness {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &witness{t: t, lives: map[string]*life{}, mortal: map[string]bool{}, counts: map[string]int{}}
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- host.Engine().Events(ctx, func() { close(began) }, func(e lab.Event) {
			if e.Type == "network" || e.Actor.Attributes["io.kubernetes.pod.namespace"] == namespace {
				w.see(e)
			}
		})
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	select {
	case <-began:
	case <-time.After(time.Minute):
		t.Fatal("the engine does not report events")
	}
	return w
}

func (w *witness) see(e lab.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	action, _, _ := strings.Cut(e.Action, ":")
	w.counts[action]++
	waiting := w.waits[:0]
	for _, wait := range w.waits {
		if wait.match(action) {
			close(wait.seen)
		} else {
			waiting = append(waiting, wait)
		}
	}
	w.waits = waiting
	if e.Type != "container" {
		return
	}
	l := w.lives[e.Actor.ID]
	if l == nil {
		labels := e.Actor.Attributes
		l = &life{
			id: e.Actor.ID, uid: labels["io.kubernetes.pod.uid"], pod: labels["io.kubernetes.pod.name"], name: labels["io.kubernetes.container.name"],
			attempt: labels["annotation.io.kubernetes.container.restartCount"], sandbox: labels["io.kubernetes.sandbox.id"],
		}
		l.init = labels["io.winkube.kind"] == "init" && strings.HasPrefix(l.name, "init")
		w.lives[e.Actor.ID] = l
	}
	at := time.Unix(0, e.TimeNano)
	switch action {
	case "start":
		w.started(l, at)
	case "die":
		l.running, l.died, l.exit = false, at, e.Actor.Attributes["exitCode"]
		if l.name != "POD" && !l.init && !w.mortal[l.uid] && !endsByItself(l.pod, l.name) {
			w.violated(l, "ended with %s %s after its start, which no test requested", l.exit, at.Sub(l.started).Round(time.Millisecond))
		}
	case "destroy":
		if l.running {
			w.violated(l, "was destroyed while it ran")
		}
	}
}

func (w *witness) started(l *life, at time.Time) {
	if l.starts++; l.starts > 1 {
		w.violated(l, "was started %d times", l.starts)
	}
	for _, other := range w.lives {
		if other == l || other.uid != l.uid || other.name != l.name {
			continue
		}
		if other.running {
			w.violated(l, "started while attempt %s (%.12s) was running", other.attempt, other.id)
		}
		if other.attempt == l.attempt && other.starts > 0 {
			w.violated(l, "is a second run of that attempt, the first was %.12s", other.id)
		}
		if l.init && other.starts > 0 && other.sandbox == l.sandbox && other.exit == "0" {
			w.violated(l, "started although attempt %s had succeeded", other.attempt)
		}
	}
	l.running, l.started = true, at
}

// violated records a violation; the lock is held.
func (w *witness) violated(l *life, format string, args ...any) {
	text := fmt.Sprintf("%s %s attempt %s (%.12s): ", l.pod, l.name, l.attempt, l.id) + fmt.Sprintf(format, args...)
	w.wrong = append(w.wrong, text)
	w.t.Errorf("%s %s", time.Now().Format("15:04:05.000"), text)
}

// mayEnd allows the containers of a pod to end from now on.
func (w *witness) mayEnd(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mortal[uid] = true
}

// of returns the lives of a pod's containers of a name, in the order of their first event.
func (w *witness) of(uid, name string) []life {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []life
	for _, l := range w.lives {
		if l.uid == uid && l.name == name && l.starts > 0 {
			all = append(all, *l)
		}
	}
	return all
}

// next returns a channel that closes with the next event of an action, or of any when action is "".
func (w *witness) next(action string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := &eventWait{match: func(a string) bool { return action == "" || a == action }, seen: make(chan struct{})}
	w.waits = append(w.waits, wait)
	return wait.seen
}

// killer kills an agent at critical moments.
type killer struct {
	host   *lab.Host
	random *rand.Rand
	w      *witness
	how    map[string]int // kills by moment
	down   time.Duration  // total time without an agent
}

// moments are the engine's events after which the agent is killed immediately; "" is any moment.
var moments = []string{"", "", "", "create", "start", "die", "destroy", "exec_create", "exec_start", "exec_die", "connect", "disconnect", "kill"}

// strike lets the agent run for a while, kills it and restarts it.
func (k *killer) strike(ctx context.Context) error {
	pause := func(longest time.Duration) {
		timer := time.NewTimer(time.Duration(k.random.Int64N(int64(longest))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	kubelet := k.host.Process("kubelet")
	pause([]time.Duration{300 * time.Millisecond, 2 * time.Second, 5 * time.Second}[k.random.IntN(3)])
	moment := moments[k.random.IntN(len(moments))]
	if moment != "" {
		select {
		case <-k.w.next(moment):
			for end := time.Now().Add([]time.Duration{0, 300 * time.Microsecond, 3 * time.Millisecond, 30 * time.Millisecond}[k.random.IntN(4)]); time.Now().Before(end); {
				// busy loop: no timer has this precision
			}
		case <-time.After(4 * time.Second):
			moment = ""
		case <-ctx.Done():
		}
	}
	if moment == "" {
		moment = "at random"
	}
	k.how[moment]++
	dead := time.Now()
	if err := kubelet.Kill9(ctx); err != nil {
		return err
	}
	if k.random.IntN(8) == 0 {
		pause(3 * time.Second) // events continue without the agent
	}
	if err := kubelet.Start(ctx); err != nil {
		return err
	}
	k.down += time.Since(dead)
	return ctx.Err()
}
