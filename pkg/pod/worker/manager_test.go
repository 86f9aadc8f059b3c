package worker_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
)

const lookupPod = `
metadata: {name: web}
spec:
  restartPolicy: Always
  containers: [{name: a, image: "a:1"}, {name: m, image: "missing:1", imagePullPolicy: Never}]
`

func TestLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(linux)
		w.begin()
		defer w.kill()
		w.api.Create(parsePod(t, []byte(lookupPod)))
		time.Sleep(time.Second)
		if err := w.engine.Exit("web.a.0", 1, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := w.manager.Ready(); err != nil {
			t.Error(err)
		}
		ref, err := w.manager.Lookup("default", "web", "uid-web", "a")
		if err != nil || ref.ID != "web.a.1" || !ref.Running || ref.Previous != "web.a.0" || ref.NetworkID != "web.sandbox.0" || len(ref.PodIPs) != 1 {
			t.Errorf("a: %+v %v", ref, err)
		}
		if _, err := w.manager.Lookup("default", "web", "", "m"); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "waiting to start: ErrImageNeverPull") {
			t.Errorf("m: %v", err)
		}
		for _, c := range [][3]string{{"default", "web", "other-uid"}, {"other", "web", ""}, {"default", "none", ""}} {
			if _, err := w.manager.Lookup(c[0], c[1], "", "none"); !apierrors.IsNotFound(err) {
				t.Errorf("%v: %v", c, err)
			}
		}
		if ref, err := w.manager.Lookup("default", "web", "", ""); err != nil || ref.ID != "" || ref.Pod.Status.PodIP == "" {
			t.Errorf("the pod alone: %+v %v", ref, err)
		}
		w.check(t)
	})
}

// TestEngineDownAtStart: before the engine has listed its containers, nothing is started or written.
func TestEngineDownAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(linux)
		w.engine.SetDown(true)
		w.begin()
		defer w.kill()
		w.api.Create(parsePod(t, []byte(lookupPod)))
		time.Sleep(time.Minute)
		if log := w.log.Take(); log != "" {
			t.Errorf("something was done: %s", log)
		}
		if err := w.manager.Ready(); err == nil {
			t.Error("ready without an engine")
		}
		w.engine.SetDown(false)
		time.Sleep(10 * time.Second)
		if got := strings.Join(w.engine.Running(), " "); got != "web.a.0 web.sandbox.0" {
			t.Errorf("runs: %s", got)
		}
		w.check(t)
	})
}

// TestVolumesFollowTheirObjects: a changed Secret reaches the volumes of a running pod, even after a failure.
func TestVolumesFollowTheirObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(linux)
		w.begin()
		defer w.kill()
		w.api.Create(parsePod(t, []byte(crashPod)))
		time.Sleep(3 * time.Second)
		before := w.disk.Prepared("uid-web")
		w.disk.Fail(2)
		w.api.SetSecret(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}})
		time.Sleep(10 * time.Second)
		if got := w.disk.Prepared("uid-web"); got != before+1 {
			t.Errorf("prepared %d times after %d; want once more", got, before)
		}
		if log := w.log.Take(); !strings.Contains(log, "FailedMount") {
			t.Errorf("no event: %s", log)
		}
		w.check(t)
	})
}

// TestLeft: an evicted pod has left when its volumes are unmounted, which a shutdown of the host waits for, and not when its containers have ended.
func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(linux)
		w.begin()
		defer w.kill()
		w.api.Create(parsePod(t, []byte("metadata: {name: web}\nspec: {containers: [{name: a, image: \"a:1\"}]}")))
		time.Sleep(3 * time.Second)
		w.disk.Fail(1 << 20)
		w.manager.Evict("uid-web", pod.Eviction{Rejection: pod.Rejection{Reason: "Terminated", Message: "Pod was terminated."}, Grace: time.Second})
		time.Sleep(10 * time.Second)
		if view := w.manager.Snapshot()[0]; view.Phase != pod.Terminated || view.Left {
			t.Errorf("with a volume that cannot be unmounted: phase %v, left %v", view.Phase, view.Left)
		}
		w.disk.Fail(0)
		time.Sleep(5 * time.Minute)
		if view := w.manager.Snapshot()[0]; !view.Left {
			t.Error("the volume is unmounted, and the pod has not left")
		}
		w.check(t)
	})
}

// TestAskHoldsUpNobody: while the Admitter asks the API server about one pod, a later pod starts. The first pod follows when there is an
// answer, unless it was removed meanwhile.
func TestAskHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(linux)
		answer := make(chan struct{})
		w.admitter.Ask = func(name string) pod.Question {
			if name == "web" {
				return nil
			}
			return func(ctx context.Context) {
				select {
				case <-answer:
				case <-ctx.Done():
				}
			}
		}
		w.begin()
		defer w.kill()
		one := func(name string) *v1.Pod {
			return parsePod(t, []byte("metadata: {name: "+name+"}\nspec: {containers: [{name: a, image: \"a:1\"}]}"))
		}
		w.api.Create(one("slow"))
		w.api.Create(one("gone"))
		synctest.Wait()
		w.api.Create(one("web"))
		synctest.Wait()
		time.Sleep(3 * time.Second)
		if got := strings.Join(w.engine.Running(), " "); got != "web.a.0 web.sandbox.0" {
			t.Errorf("while asking: %s", got)
		}
		if err := w.manager.Ready(); err != nil {
			t.Error(err)
		}
		if err := w.api.Remove("gone", 0); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		close(answer)
		time.Sleep(3 * time.Second)
		if got := strings.Join(w.engine.Running(), " "); got != "slow.a.0 slow.sandbox.0 web.a.0 web.sandbox.0" {
			t.Errorf("after the answer: %s", got)
		}
		w.check(t)
	})
}
