package worker_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/winkube/winkube/pkg/pod"
)

// TestSlots: sandboxes start a few at a time, and the containers of the first pods before the sandboxes of the last. A start that hangs gives its
// slot to another pod, and a pod that is deleted while it waits leaves nothing.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(linux)
		var sandboxes, containers, before atomic.Int32
		hang := make(chan struct{})
		w.engine.OnApply = func(step pod.Step) {
			switch step.Action {
			case pod.CreateSandbox:
				if sandboxes.Add(1) <= int32(starts) {
					<-hang
				}
			case pod.StartContainer:
				if containers.Add(1) == 1 {
					before.Store(sandboxes.Load())
				}
			}
		}
		w.begin()
		defer w.kill()
		const pods = 5 * starts
		for i := range pods {
			w.api.Create(parsePod(t, fmt.Appendf(nil, "metadata: {name: p%d}\nspec: {containers: [{name: a, image: \"a:1\"}]}", i)))
			synctest.Wait()
		}
		time.Sleep(9 * time.Second)
		if got := sandboxes.Load(); got != starts {
			t.Errorf("%d sandboxes start at a time, want %d", got, starts)
		}
		if err := w.api.Remove(fmt.Sprintf("p%d", pods-1), 0); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if got := len(w.engine.Running()); got != 2*(pods-starts-1) {
			t.Errorf("beside hanging starts %d run: %s", got, w.engine.Running())
		}
		if got := before.Load(); got >= pods-starts {
			t.Errorf("the first container started after %d of %d sandboxes", got, pods)
		}
		close(hang)
		time.Sleep(2 * time.Second)
		if got, want := len(w.engine.Running()), 2*(pods-1); got != want || sandboxes.Load() != pods-1 {
			t.Errorf("%d run, want %d; %d sandboxes were started", got, want, sandboxes.Load())
		}
		w.check(t)
	})
}
