package kubelet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// house is a node with pods: one named slow never ends, others at the next look.
type house struct {
	views []pod.View
	log   []string
	looks int                // at the present class of pods
	over  context.CancelFunc // ends its time, after five looks
}

func (h *house) pods() []pod.View {
	now := slices.Clone(h.views)
	for i := range h.views {
		if v := &h.views[i]; v.Phase == pod.Terminating && v.Pod.Name != "slow" {
			v.Phase = pod.Terminated
		}
	}
	if h.looks++; h.looks == 5 {
		h.over()
	}
	return now
}

func (h *house) evict(uid types.UID, e pod.Eviction) {
	for i := range h.views {
		if v := &h.views[i]; v.Pod.UID == uid {
			h.log = append(h.log, fmt.Sprintf("%s %s %s", v.Pod.Name, e.Reason, e.Grace))
			v.Phase = pod.Terminating
		}
	}
}

func newHouse(names ...string) (*house, *shutdown) {
	h := &house{}
	for _, name := range names {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		if priority, err := strconv.Atoi(name); err == nil {
			p.Spec.Priority = new(int32(priority))
		}
		if strings.HasPrefix(name, "critical") {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		}
		h.views = append(h.views, pod.View{Pod: p, Phase: pod.Syncing})
	}
	tick := make(chan time.Time)
	close(tick)
	return h, &shutdown{times: Shutdown{Grace: 30 * time.Second, Critical: 10 * time.Second}, tick: tick, pods: h.pods, evict: h.evict,
		tell: func() { h.log = append(h.log, "node is shutting down") },
		before: func(d time.Duration) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			h.looks, h.over = 0, cancel
			return ctx, cancel
		}}
}

func TestShutdown(t *testing.T) {
	for name, c := range map[string]struct {
		pods  []string
		times Shutdown
		want  string
	}{
		"none":           {nil, Shutdown{Grace: time.Minute}, "node is shutting down"},
		"critical last":  {[]string{"critical", "web", "db"}, Shutdown{Grace: 30 * time.Second, Critical: 10 * time.Second}, "node is shutting down|web Terminated 20s|db Terminated 20s|critical Terminated 10s"},
		"one never ends": {[]string{"slow", "critical"}, Shutdown{Grace: 30 * time.Second, Critical: 10 * time.Second}, "node is shutting down|slow Terminated 20s|critical Terminated 10s"},
		"by priority": {[]string{"9", "critical", "100", "5000", "web", "-7"}, Shutdown{ByPriority: []ShutdownClass{{100, 5 * time.Second}, {podspec.SystemCriticalPriority, 0}, {9, time.Minute}}},
			"node is shutting down|9 Terminated 1m0s|web Terminated 1m0s|-7 Terminated 1m0s|100 Terminated 5s|5000 Terminated 5s|critical Terminated 0s"},
		"not asked for": {[]string{"web"}, Shutdown{}, "node is shutting down"},
	} {
		h, s := newHouse(c.pods...)
		s.times = c.times
		s.run()
		if got := strings.Join(h.log, "|"); got != c.want {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
}

// open admits everything.
type open struct{ pod.Admitter }

func (open) Admit(*v1.Pod) *pod.Rejection { return nil }

func TestUntilShutdown(t *testing.T) {
	for cause, want := range map[error]string{daemon.ErrShutdown: "node is shutting down|web Terminated 20s", context.Canceled: ""} {
		h, s := newHouse("web")
		admitter := s.admitter(open{})
		if no := admitter.Admit(nil); no != nil {
			t.Errorf("before: %v", no)
		}
		k := &Kubelet{shutdown: s}
		ctx, end := context.WithCancelCause(t.Context())
		inner, cancel := k.untilShutdown(ctx)
		end(cause)
		<-inner.Done()
		cancel()
		if got := strings.Join(h.log, "|"); got != want {
			t.Errorf("%v: %s, want %s", cause, got, want)
		}
		if no := admitter.Admit(nil); (no != nil) != errors.Is(cause, daemon.ErrShutdown) {
			t.Errorf("%v: afterwards %v", cause, no)
		}
	}
}

func TestCheckShutdown(t *testing.T) {
	for _, c := range []struct {
		s    Shutdown
		want string
	}{
		{Shutdown{}, ""}, {Shutdown{Grace: time.Minute, Critical: time.Minute}, ""},
		{Shutdown{Grace: -1}, "shutdownGracePeriod"}, {Shutdown{Grace: time.Second, Critical: time.Minute}, "want 0 to 1s"},
		{Shutdown{ByPriority: []ShutdownClass{{1, 0}, {2, time.Second}}}, ""}, {Shutdown{Grace: time.Second, ByPriority: []ShutdownClass{{1, 0}}}, "not both"},
		{Shutdown{ByPriority: []ShutdownClass{{1, 0}, {1, time.Second}}}, "priority 1: want each priority once"}, {Shutdown{ByPriority: []ShutdownClass{{1, -time.Second}}}, "-1: want 0 or more"},
		{Shutdown{Grace: time.Millisecond}, "at least 1s"}, {Shutdown{Critical: time.Second}, "want 0 to 0s"},
	} {
		if err := c.s.Check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.s, err, c.want)
		}
	}
}
