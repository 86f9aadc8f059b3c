package mount

import "testing"

func TestSystem(t *testing.T) {
	if System() != (None{}) {
		t.Error("there is something to mount")
	}
}
