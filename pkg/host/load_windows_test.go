package host

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

// TestBusyGroup: with one group, its processors have worked as long as Windows reports for all.
func TestBusyGroup(t *testing.T) {
	before, err := busySystem()
	if err != nil {
		t.Fatal(err)
	}
	group, err := busyGroup(0)
	if errors.Is(err, windows.STATUS_NOT_IMPLEMENTED) || errors.Is(err, windows.STATUS_INVALID_INFO_CLASS) {
		t.Skipf("this Windows does not report processor groups: %v", err)
	}
	after, errAfter := busySystem()
	if err != nil || errAfter != nil || group < before-time.Second || group > after+time.Second {
		t.Errorf("group 0: %s, %v; all: %s to %s, %v", group, err, before, after, errAfter)
	}
	if _, err := busyGroup(63); err == nil {
		t.Error("a group that is not there has times")
	}
}
