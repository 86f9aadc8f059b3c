package tuning

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
)

// TestPortsRestored: the setting for TIME_WAIT is restored if it is still ours, once, by any proxy that cleans up.
func TestPortsRestored(t *testing.T) {
	nstest.In(t)
	setting := func() string {
		text, err := os.ReadFile(reusePort)
		if err != nil {
			t.Skipf("this kernel has no such setting: %v", err)
		}
		return strings.TrimSpace(string(text))
	}
	set := func(value string) {
		if err := os.WriteFile(reusePort, []byte(value), 0o644); err != nil {
			t.Skipf("cannot change settings here: %v", err)
		}
	}
	t.Cleanup(func() { _ = os.Remove(settingNote()) })
	for _, c := range []struct{ before, meanwhile, used, after string }{
		{"2", "", "1", "2"},
		{"2", "0", "1", "0"}, // changed by others since
		{"1", "", "1", "1"},  // changed by others before
		{"0", "", "0", "0"},
	} {
		set(c.before)
		changes, err := reusePorts()
		if err != nil || setting() != c.used || (len(changes) > 0) != (c.before != c.used) {
			t.Errorf("%+v: %v, %v, setting %s", c, changes, err, setting())
		}
		if c.meanwhile != "" {
			set(c.meanwhile)
		}
		for range 2 {
			if err := Restore(); err != nil || setting() != c.after {
				t.Errorf("%+v: cleaned up, the setting is %s, %v", c, setting(), err)
			}
		}
	}
}

// TestProcessors: Go's scheduler has one more processor for each loop, and the change is reported.
func TestProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	if c := addProcessors(3); runtime.GOMAXPROCS(0) != before+3 || c != (Change{"GOMAXPROCS", strconv.Itoa(before), strconv.Itoa(before + 3)}) {
		t.Errorf("%d processors, said %+v", runtime.GOMAXPROCS(0), c)
	}
}
