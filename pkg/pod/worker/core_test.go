package worker

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
)

// TestConfigOfPlans: the node's settings reach the plans of each pod.
func TestConfigOfPlans(t *testing.T) {
	dead := &plan.DeadLimits{Total: 3}
	c := newCore(&Config{Platform: pod.Platform{OS: "linux"}, Dead: dead, CrashBackOff: 7 * time.Second}, &Parts{Clock: clock.RealClock{}}, pod.Desired{Pod: &v1.Pod{}}, time.Now())
	if got := c.seen.Node; got.Platform.OS != "linux" || got.Dead != dead || got.CrashBackOff != 7*time.Second {
		t.Errorf("node %+v", got)
	}
}
