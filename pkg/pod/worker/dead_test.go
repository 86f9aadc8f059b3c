package worker

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestSurplus(t *testing.T) {
	dead := func(id string, minutes int) pod.Container {
		return pod.Container{ID: id, Name: strings.TrimRight(id, "0123456789"), State: pod.Exited, FinishedAt: noon.Add(-time.Duration(minutes) * time.Minute)}
	}
	view := func(uid types.UID, phase pod.Phase, all ...pod.Container) pod.View {
		return pod.View{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}, Phase: phase, Observed: pod.Observed{Containers: all}}
	}
	views := []pod.View{
		view("runs", pod.Syncing, pod.Container{ID: "a9", Name: "a", State: pod.Running}, dead("a8", 2), dead("a7", 6), dead("b1", 9)), // b waits for its restart
		view("over", pod.Terminated, dead("d2", 4), dead("d1", 5)),
	}
	for _, test := range []struct {
		limits plan.DeadLimits
		want   string
	}{
		{plan.DeadLimits{Total: -1}, ""}, {plan.DeadLimits{Total: 4}, ""}, {plan.DeadLimits{Total: 3}, "a7"}, {plan.DeadLimits{Total: 1}, "a7 d1 d2"}, {plan.DeadLimits{Total: 0}, "a7 a8 d1 d2"},
		{plan.DeadLimits{Total: 0, MinAge: 5 * time.Minute}, "a7 d1"},
	} {
		var got []string
		for _, ids := range surplus(test.limits, views, noon) {
			got = append(got, ids...)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != test.want {
			t.Errorf("%+v: got %q, want %q", test.limits, got, test.want)
		}
	}
}
