package mount

import "testing"

func TestPlainDirectories(t *testing.T) {
	if System() != (None{}) {
		t.Error("there is something to mount")
	}
}
