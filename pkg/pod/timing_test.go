package pod_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stopwatch is a pod.Timing that keeps what it is told, rounded to seconds.
type stopwatch struct {
	mu   sync.Mutex
	told []string
}

func (s *stopwatch) tell(what string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprint(what, " ", took.Round(time.Second)))
}

func (s *stopwatch) PodSynced(kind string, took time.Duration) { s.tell(kind, took) }
func (s *stopwatch) PodStarted(took time.Duration)             { s.tell("started", took) }

// take is what was told since the last call.
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

// TestTiming follows a pod through its life: what work on it took, and its start, which another agent that finds it running does not tell of.
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
