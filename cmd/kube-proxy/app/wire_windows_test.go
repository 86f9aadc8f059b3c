package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/hns"
)

// TestOwnSwitchWindows creates the switch of service addresses and removes it. Wine does not list the switch's adapter;
// the error names it.
func TestOwnSwitchWindows(t *testing.T) {
	if err := hns.MakeInternal(internalSwitch); err != nil {
		if _, err := ownAddresses(t.Context()); err == nil || !strings.Contains(err.Error(), internalSwitch) {
			t.Errorf("without HNS: %v", err)
		}
		if err := removeOwn(t.Context()); err == nil {
			t.Error("without HNS a switch was removed")
		}
		t.Skipf("there is no HNS: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	addresses, err := ownAddresses(ctx)
	there, looked := adapterExists(switchAdapters[0])
	switch {
	case looked != nil:
		t.Error(looked)
	case there && (err != nil || addresses == nil):
		t.Errorf("its adapter is there: %v", err)
	case !there && (err == nil || !strings.Contains(err.Error(), switchAdapters[0])):
		t.Errorf("its adapter is not there: %v", err)
	}
	if err := removeOwn(t.Context()); err != nil {
		t.Error(err)
	}
	if err := removeOwn(t.Context()); err != nil {
		t.Errorf("once more: %v", err)
	}
	if newSystem().hns == nil || newSystem().netsh == nil {
		t.Error("Windows has HNS and netsh")
	}
}
