package shutdown

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/wake"
)

// house is a node with pods: those named slow never end, others end after half a second. The volumes of a pod named mounted are unmounted two seconds later, and
// the node releases disks one second after the last pod has left.
type house struct {
	state State
	views []pod.View
	ends  map[types.UID]time.Time
	log   []string
	disks bool
	empty time.Time // since when no pod is left
}

// InUse implements Volumes.
func (h *house) InUse() []v1.UniqueVolumeName {
	left := slices.ContainsFunc(h.Snapshot(), func(v pod.View) bool { return !v.Left })
	switch {
	case !h.disks:
		return nil
	case left:
		h.empty = time.Time{}
	case h.empty.IsZero():
		h.empty = time.Now()
	case time.Since(h.empty) >= time.Second:
		return nil
	}
	return []v1.UniqueVolumeName{"disk"}
}

// Snapshot implements Pods.
func (h *house) Snapshot() []pod.View {
	for i := range h.views {
		v := &h.views[i]
		if at, ending := h.ends[v.Pod.UID]; ending && v.Pod.Name != "slow" && !time.Now().Before(at) {
			v.Phase = pod.Terminated
			v.Left = v.Pod.Name != "mounted" || !time.Now().Before(at.Add(2*time.Second))
		}
	}
	return slices.Clone(h.views)
}

// Evict implements Pods.
func (h *house) Evict(uid types.UID, e pod.Eviction) {
	for i := range h.views {
		if v := &h.views[i]; v.Pod.UID == uid {
			h.log = append(h.log, fmt.Sprintf("%s %s %s", v.Pod.Name, e.Reason, e.Grace))
			v.Phase, h.ends[uid] = pod.Terminating, time.Now().Add(500*time.Millisecond)
		}
	}
}

// told is the log, with the Node first if it was notified of the shutdown.
func (h *house) told(node wake.Signal) string {
	log := h.log
	select {
	case <-node:
		log = append([]string{"node is shutting down"}, log...)
	default:
	}
	return strings.Join(log, "|")
}

func newHouse(cfg Config, names ...string) (*house, *Manager) {
	h := &house{ends: map[types.UID]time.Time{}}
	for _, name := range names {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		if priority, err := strconv.Atoi(name); err == nil {
			p.Spec.Priority = new(int32(priority))
		}
		if strings.HasPrefix(name, "critical") {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		}
		phase := pod.Syncing
		if name == "hung" {
			phase = pod.Terminated
		}
		h.views = append(h.views, pod.View{Pod: p, Phase: phase})
	}
	return h, New(cfg, &h.state, h, h, wake.New(), clock.RealClock{})
}

func TestShutdown(t *testing.T) {
	for name, c := range map[string]struct {
		pods  []string
		times Config
		took  time.Duration
		want  string
	}{
		"none":           {nil, Config{Grace: time.Minute}, 0, "node is shutting down"},
		"critical last":  {[]string{"critical", "web", "db"}, Config{Grace: 30 * time.Second, Critical: 10 * time.Second}, time.Second, "node is shutting down|web Terminated 20s|db Terminated 20s|critical Terminated 10s"},
		"one never ends": {[]string{"slow", "critical"}, Config{Grace: 30 * time.Second, Critical: 10 * time.Second}, 20*time.Second + 500*time.Millisecond, "node is shutting down|slow Terminated 20s|critical Terminated 10s"},
		"by priority": {[]string{"9", "critical", "100", "5000", "web", "-7"}, Config{ByPriority: []Class{{100, 5 * time.Second}, {podspec.SystemCriticalPriority, 0}, {9, time.Minute}}}, time.Second,
			"node is shutting down|9 Terminated 1m0s|web Terminated 1m0s|-7 Terminated 1m0s|100 Terminated 5s|5000 Terminated 5s|critical Terminated 0s"},
		"not asked for":     {[]string{"web"}, Config{}, 0, "node is shutting down"},
		"volumes of pods":   {[]string{"mounted", "critical"}, Config{Grace: 30 * time.Second, Critical: 10 * time.Second}, 3 * time.Second, "node is shutting down|mounted Terminated 20s|critical Terminated 10s"},
		"ended before":      {[]string{"hung"}, Config{Grace: 30 * time.Second}, 0, "node is shutting down"},
		"disks of the node": {[]string{"web"}, Config{Grace: 30 * time.Second}, 1500 * time.Millisecond, "node is shutting down|web Terminated 30s"},
		"disks of one that never ends": {[]string{"slow", "critical"}, Config{Grace: 30 * time.Second, Critical: 10 * time.Second}, 30 * time.Second,
			"node is shutting down|slow Terminated 20s|critical Terminated 10s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, m := newHouse(c.times, c.pods...)
			h.disks = strings.HasPrefix(name, "disks")
			begun := time.Now()
			m.run(t.Context())
			if got := h.told(m.node); got != c.want {
				t.Errorf("%s: %s\nwant %s", name, got, c.want)
			}
			if took := time.Since(begun); took != c.took {
				t.Errorf("%s took %s, want %s", name, took, c.took)
			}
		})
	}
}

// open admits everything.
type open struct{ pod.Admitter }

func (open) Admit(*v1.Pod) *pod.Rejection { return nil }

func TestContext(t *testing.T) {
	for cause, want := range map[error]string{daemon.ErrShutdown: "node is shutting down|web Terminated 20s", context.Canceled: ""} {
		synctest.Test(t, func(t *testing.T) {
			h, m := newHouse(Config{Grace: 30 * time.Second, Critical: 10 * time.Second}, "web")
			admitter := h.state.Admitter(open{})
			if no := admitter.Admit(nil); no != nil {
				t.Errorf("before: %v", no)
			}
			ctx, end := context.WithCancelCause(t.Context())
			inner, cancel := m.Context(ctx)
			end(cause)
			<-inner.Done()
			cancel()
			if got := h.told(m.node); got != want {
				t.Errorf("%v: %s, want %s", cause, got, want)
			}
			if no := admitter.Admit(nil); (no != nil) != errors.Is(cause, daemon.ErrShutdown) {
				t.Errorf("%v: afterwards %v", cause, no)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		s    Config
		want string
	}{
		{Config{}, ""}, {Config{Grace: time.Minute, Critical: time.Minute}, ""},
		{Config{Grace: -1}, "shutdownGracePeriod"}, {Config{Grace: time.Second, Critical: time.Minute}, "want 0 to 1s"},
		{Config{ByPriority: []Class{{1, 0}, {2, time.Second}}}, ""}, {Config{Grace: time.Second, ByPriority: []Class{{1, 0}}}, "set either it, or"},
		{Config{ByPriority: []Class{{1, 0}, {1, time.Second}}}, "priority 1: want each priority once"}, {Config{ByPriority: []Class{{1, -time.Second}}}, "-1: want 0 or more"},
		{Config{Grace: time.Millisecond}, "at least 1s"}, {Config{Critical: time.Second}, "want 0 to 0s"},
	} {
		if err := c.s.Check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.s, err, c.want)
		}
	}
}
