package cgroup

import (
	"errors"
	"testing"
)

// TestNoAlarms: there are no alarms on Windows.
func TestNoAlarms(t *testing.T) {
	if _, err := watchUsage("a", 1, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := watchPressure("a", "some", nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
