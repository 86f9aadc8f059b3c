package worker_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// TestStatusWrites: while a pod starts, its status is written when that takes long, and not after each step.
func TestStatusWrites(t *testing.T) {
	for _, c := range []struct {
		name               string
		sandbox, container time.Duration // how much longer than usual they take
		want               []string
	}{
		{"fast", 0, 0, []string{"0.15s Running"}},
		{"slow", time.Second, 500 * time.Millisecond, []string{"1.65s Running"}},
		{"a slow sandbox", 5 * time.Second, 4 * time.Second, []string{"2.00s Pending", "9.15s Running"}},
		{"a slow image", 0, 15 * time.Second, []string{"2.00s Pending with address", "15.15s Running"}},
		{"both slow", 5 * time.Second, 15 * time.Second, []string{"2.00s Pending", "15.10s Pending with address", "20.15s Running"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(linux)
				w.engine.OnApply = func(step pod.Step) {
					switch step.Action {
					case pod.CreateSandbox:
						time.Sleep(c.sandbox)
					case pod.StartContainer:
						time.Sleep(c.container)
					}
				}
				var got []string
				begin := time.Now()
				w.api.OnWrite = func(_ string, status *v1.PodStatus) {
					text := fmt.Sprintf("%.2fs %s", time.Since(begin).Seconds(), status.Phase)
					if status.Phase == v1.PodPending && status.PodIP != "" {
						text += " with address"
					}
					got = append(got, text)
				}
				w.begin()
				defer w.kill()
				w.api.Create(parsePod(t, []byte("metadata: {name: p}\nspec: {containers: [{name: a, image: \"a:1\"}]}")))
				time.Sleep(time.Minute)
				synctest.Wait()
				if !slices.Equal(got, c.want) {
					t.Errorf("%q, want %q", got, c.want)
				}
				w.check(t)
			})
		})
	}
}
