package worker

import (
	"testing"

	"github.com/winkube/winkube/pkg/pod"
)

// TestStage: the progress of a pod's end follows from what is gone, in any order.
func TestStage(t *testing.T) {
	all := remains{unwanted: true, directory: true, cgroup: true, object: true}
	without := func(change func(*remains)) remains {
		r := all
		change(&r)
		return r
	}
	for _, test := range []struct {
		name  string
		facts remains
		phase pod.Phase
		empty bool
		want  stage
	}{
		{"it runs", all, pod.Syncing, true, living},
		{"it is being stopped", all, pod.Terminating, true, living},
		{"nothing is gone", remains{}, pod.Terminated, false, leaving},
		{"its directory is not", without(func(r *remains) { r.directory = false }), pod.Terminated, true, leaving},
		{"its API object is there", without(func(r *remains) { r.unwanted = false }), pod.Terminated, true, vacated},
		{"its cgroup is there", without(func(r *remains) { r.cgroup = false }), pod.Terminated, true, vacated},
		{"the engine has something", all, pod.Terminated, false, vacated},
		{"it was deleted by another", without(func(r *remains) { r.object = false }), pod.Terminated, true, finished},
		{"all is gone", all, pod.Terminated, true, finished},
	} {
		if got := test.facts.stage(test.phase, test.empty); got != test.want {
			t.Errorf("%s: stage %d, want %d", test.name, got, test.want)
		}
	}
}
