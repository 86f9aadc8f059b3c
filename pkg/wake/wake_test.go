package wake_test

import (
	"testing"

	"github.com/winkube/winkube/pkg/wake"
)

func TestSignal(t *testing.T) {
	signal := wake.New()
	pending := func() bool {
		select {
		case <-signal:
			return true
		default:
			return false
		}
	}
	if pending() {
		t.Error("a new signal is pending")
	}
	signal.Send()
	signal.Send()
	if !pending() {
		t.Error("a sent signal is not pending")
	}
	if pending() {
		t.Error("two signals before the receiver looked count as two")
	}
	wake.Signal(nil).Send() // does not block
}
