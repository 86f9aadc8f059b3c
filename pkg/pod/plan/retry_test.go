package plan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// TestRetry: the wait doubles from 1 s to 10 s, a hint replaces it once, and Now ends it but keeps the back-off.
func TestRetry(t *testing.T) {
	var r Retry
	if r.Waits(noon) {
		t.Error("what never failed waits")
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if r = r.Again(noon, 0); r.Until != noon.Add(want*time.Second) || !r.Waits(noon) || r.Waits(r.Until) {
			t.Errorf("failure %d: until %s, want %d s", i, r.Until, want)
		}
	}
	if r = (Retry{}).Again(noon, 0).Again(noon, time.Minute); r.Until != noon.Add(time.Minute) {
		t.Errorf("with a hint: until %s", r.Until)
	}
	if r = r.Now(); r.Waits(noon) {
		t.Error("waits although it is due")
	}
	if r = r.Again(noon, 0); r.Until != noon.Add(4*time.Second) {
		t.Errorf("third failure: until %s, want 4 s", r.Until)
	}
}

// TestForget: what is remembered of containers is dropped when they are gone, and not earlier.
func TestForget(t *testing.T) {
	desired := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "web"}}}}
	engine := &pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box"}}, Containers: []pod.Container{{ID: "web-1", Name: "web"}}}
	keys := map[Key]bool{
		SandboxKey: true, StartKey("web"): true, StartKey("gone"): false, MemberKey("web-1"): true, MemberKey("web-0"): false, MemberKey("box"): true,
		UpdateKey(""): true, UpdateKey("web-1"): true, UpdateKey("web-0"): false,
	}
	m := &Memory{Retries: map[Key]Retry{}}
	for key := range keys {
		m.Retries[key] = Retry{Reason: "why"}
	}
	for _, id := range []string{"web-0", "web-1", "box"} {
		m.Note(id).Replace = true
	}
	m.Forget(desired, engine)
	for key, stays := range keys {
		if _, there := m.Retries[key]; there != stays {
			t.Errorf("%+v is there: %t, want %t", key, there, stays)
		}
	}
	if m.Run("web-0").Replace || !m.Run("web-1").Replace || !m.Run("box").Replace {
		t.Errorf("%v", m.Runs)
	}
}
