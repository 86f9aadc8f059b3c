package worker_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/winkube/winkube/pkg/pod"
)

const crashPod = `
metadata: {name: web}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 30
  initContainers:
  - {name: side, image: "s:1", restartPolicy: Always, startupProbe: {exec: {command: [up]}, periodSeconds: 1}}
  containers:
  - {name: a, image: "a:1", lifecycle: {preStop: {exec: {command: [bye]}}}}
  - {name: b, image: "b:1", lifecycle: {postStart: {exec: {command: [hello]}}}, readinessProbe: {exec: {command: [ready]}, periodSeconds: 1}}
`

// TestCrashAtEveryStep ends the Manager before, during and after each step of a pod's life, and once more while the second Manager works. A
// new one must reach the same state as an undisturbed one, without starting or restarting anything twice.
func TestCrashAtEveryStep(t *testing.T) {
	life := func(t *testing.T, crashAt int, after time.Duration) (alive string, steps int) {
		w := newWorld(linux)
		w.engine.SetProbe("", "up", true)
		w.engine.SetProbe("", "ready", true)
		crashes := make(chan struct{}, 2)
		var count atomic.Int32
		w.engine.OnApply = func(pod.Step) {
			if n := int(count.Add(1)); n == crashAt || n == crashAt+2 {
				crashes <- struct{}{}
			}
		}
		live := func(d time.Duration) {
			for end := time.Now().Add(d); ; {
				select {
				case <-crashes:
					time.Sleep(after)
					w.kill()
					w.begin()
				case <-time.After(time.Until(end)):
					return
				}
			}
		}
		w.begin()
		synctest.Wait()
		w.api.Create(parsePod(t, []byte(crashPod)))
		live(20 * time.Second)
		alive = w.api.String() + w.engine.String()
		if err := w.api.Remove("web", 30); err != nil {
			t.Fatal(err)
		}
		live(45 * time.Second)
		w.check(t)
		if rest := w.api.String() + w.engine.String() + w.disk.String(); rest != "directories: []\n" {
			t.Errorf("left over:\n%s%s", rest, w.log.Take())
		}
		w.kill()
		return alive, int(count.Load())
	}
	var want string
	var steps int
	synctest.Test(t, func(t *testing.T) { want, steps = life(t, -1, 0) })
	if steps < 10 {
		t.Fatalf("%d steps; want at least 10", steps)
	}
	for at := 1; at <= steps; at++ {
		for _, after := range []time.Duration{0, 5 * time.Millisecond, 30 * time.Millisecond, 51 * time.Millisecond, 700 * time.Millisecond} {
			t.Run(fmt.Sprintf("step %d after %s", at, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if got, _ := life(t, at, after); got != want {
						t.Errorf("got:\n%s\nwant:\n%s", got, want)
					}
				})
			})
		}
	}
}
