package mount

import "testing"

func TestPlainDirectories(t *testing.T) {
	if System() != (Linked{SystemLinks()}) {
		t.Error("there is something to mount")
	}
}
