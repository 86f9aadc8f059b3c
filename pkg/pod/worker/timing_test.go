package worker_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/winkube/winkube/pkg/podspec"
)

// stopwatch is a pod.Timing that records calls, rounded to seconds.
type stopwatch struct {
	mu   sync.Mutex
	told []string
	ends []string
}

func (s *stopwatch) tell(what string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprint(what, " ", took.Round(time.Second)))
}

func (s *stopwatch) PodSynced(kind string, took time.Duration) { s.tell(kind, took) }

func (s *stopwatch) PodStarted(took time.Duration) { s.tell("started", took) }

func (s *stopwatch) ContainerEnded(kind podspec.Kind, exitCode int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, fmt.Sprint(kind, " ", exitCode, " ", reason))
}

// takeEnds returns the containers that ended since the last call.
func (s *stopwatch) takeEnds() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ends := strings.Join(s.ends, ", ")
	s.ends = nil
	return ends
}

// take returns what was recorded since the last call.
func (s *stopwatch) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := strings.Join(s.told, ", ")
	s.told = nil
	return told
}

const timedPod = `
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 20
  containers: [{name: a, image: "a:1"}]
`

// TestTiming follows a pod through its life: the duration of the work, and the pod's start, which another agent that finds it running does
// not report.
func TestTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch := &stopwatch{}
		w := newWorld(linux)
		w.timing = watch
		w.begin()
		defer func() { w.kill() }()
		tells := func(what, want string) {
			t.Helper()
			if got := watch.take(); got != want {
				t.Errorf("%s: told %q, want %q", what, got, want)
			}
		}
		w.disk.Fail(2)
		w.api.Create(parsePod(t, []byte(timedPod)))
		time.Sleep(30 * time.Second)
		tells("created when the third try succeeds", "create 0s, create 0s, started 3s, create 0s")
		if err := w.engine.Exit("web.a.0", 1, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		tells("ended and started again", "sync 0s")
		w.kill()
		w.begin()
		time.Sleep(30 * time.Second)
		tells("seen by another agent", "")
		w.engine.Stubborn("web.a.1")
		if err := w.api.Remove("web", 20); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		tells("deleted", "kill 20s, terminated 0s")
		w.check(t)
	})
}

const endingPod = `
metadata: {name: web}
spec:
  initContainers: [{name: first, image: "a:1"}]
  containers: [{name: a, image: "a:1"}]
`

// TestEndings: each ended attempt of a container is reported once, even by an agent that finds it running. What ended while no agent ran is
// not reported.
func TestEndings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch := &stopwatch{}
		w := newWorld(linux)
		w.timing = watch
		w.begin()
		defer func() { w.kill() }()
		steps := func(what string, do func() error, want string) {
			t.Helper()
			if err := do(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			time.Sleep(time.Minute)
			if got := watch.takeEnds(); got != want {
				t.Errorf("%s: told %q, want %q", what, got, want)
			}
		}
		exit := func(id string, code int) func() error { return func() error { return w.engine.Exit(id, code, "") } }
		steps("created", func() error { w.api.Create(parsePod(t, []byte(endingPod))); return nil }, "")
		steps("the init container", exit("web.first.0", 0), "init 0 Completed")
		steps("a crash", exit("web.a.0", 139), "app 139 Error")
		steps("another agent", func() error { w.kill(); w.begin(); return nil }, "")
		steps("a crash that it sees", exit("web.a.1", 2), "app 2 Error")
		w.kill()
		steps("an end that is not seen", exit("web.a.2", 3), "")
		steps("a third agent", func() error { w.begin(); return nil }, "")
		steps("deleted", func() error { return w.api.Remove("web", 20) }, "app 0 Completed")
		w.check(t)
	})
}
