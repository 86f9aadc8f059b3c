package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// TestDeadLimits: a container with a running attempt and three exited ones, which ended 1, 2 and 3 minutes ago.
func TestDeadLimits(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	observed := pod.Observed{Sandboxes: []pod.Sandbox{{ID: "s", Running: true}}}
	for i, state := range []pod.State{pod.Running, pod.Exited, pod.Exited, pod.Exited} {
		c := pod.Container{ID: fmt.Sprintf("c%d", 3-i), Name: "c", Kind: podspec.App, Attempt: 3 - i, SandboxID: "s", Hash: podspec.Hash(&p.Spec.Containers[0]), State: state,
			CreatedAt: noon.Add(-time.Hour), StartedAt: noon.Add(-time.Hour)}
		if state == pod.Exited {
			c.FinishedAt = noon.Add(-time.Duration(i) * time.Minute)
		}
		observed.Containers = append(observed.Containers, c)
	}
	for _, test := range []struct {
		name    string
		dead    *DeadLimits
		surplus map[string]bool
		want    string
	}{
		{"upstream's", nil, nil, "c1 c0"},
		{"none", &DeadLimits{PerContainer: 0}, nil, "c2 c1 c0"},
		{"two", &DeadLimits{PerContainer: 2}, nil, "c0"},
		{"all", &DeadLimits{PerContainer: -1}, nil, ""},
		{"none but the young", &DeadLimits{MinAge: 2 * time.Minute}, nil, "c1 c0"},
		{"too many on the node", &DeadLimits{PerContainer: -1}, map[string]bool{"c1": true, "c3": true}, "c1"},
	} {
		seen := Seen{Node: Node{Platform: platforms[""], Dead: test.dead}, Engine: observed}
		for id := range test.surplus {
			seen.Memory.Note(id).Surplus = true
		}
		var removed []string
		for _, step := range Plan(p, seen, noon).Steps {
			if does(step, pod.RemoveContainer) {
				removed = append(removed, step.Of().ID)
			}
		}
		if got := strings.Join(removed, " "); got != test.want {
			t.Errorf("%s: removed %q, want %q", test.name, got, test.want)
		}
	}
}
