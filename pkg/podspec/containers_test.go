package podspec

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestHashIsStable(t *testing.T) {
	c := v1.Container{Name: "web", Image: "nginx:1"}
	const want = "28f15340"
	got := Hash(&c)
	c.Env, c.TerminationMessagePath = []v1.EnvVar{{Name: "A"}}, "/dev/termination-log"
	if again := Hash(&c); again != got {
		t.Errorf("the hash depends on more than name and image")
	}
	if got != want {
		t.Errorf("got %s, want %s: running containers would be restarted by an update of the agent", got, want)
	}
	c.Image = "nginx:2"
	if Hash(&c) == got {
		t.Error("the hash does not depend on the image")
	}
}
