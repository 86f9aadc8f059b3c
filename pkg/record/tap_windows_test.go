package record

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/hns"
)

// TestTap: calls to HNS and IP Helper between Tap and undo are recorded unchanged, and none before or after.
func TestTap(t *testing.T) {
	if _, err := hns.Survey(); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	r := New()
	undo, missing := r.Tap()
	if slices.ContainsFunc(missing, func(m string) bool { return !strings.HasSuffix(m, "this program does not call it") }) {
		t.Errorf("missing: %q", missing)
	}
	Roomy(func() {
		if err := hns.MakeInternal("tap-test"); err != nil {
			t.Error(err)
		}
		defer func() {
			if err := hns.RemoveInternal("tap-test"); err != nil {
				t.Error(err)
			}
		}()
		if _, err := hns.Survey(); err != nil {
			t.Error(err)
		}
		r.ReadRegistry()
		if found, err := Hold([]string{"no such adapter"}, netip.MustParseAddr("198.51.100.10"), true); found || err != nil {
			t.Errorf("an adapter that is not there: %v, %v", found, err)
		}
	})
	undo()
	before := len(r.exchanges)
	if _, err := hns.Survey(); err != nil || len(r.exchanges) != before {
		t.Errorf("recorded after undo: %d exchanges more, %v", len(r.exchanges)-before, err)
	}
	wants := map[string]func(Exchange) bool{
		"a network is made": func(e Exchange) bool {
			return e.Call == "HNSCall" && TextOf(e.In[0]) == "POST" && strings.Contains(string(e.In[2]), `"tap-test"`) && strings.Contains(string(e.Out[0]), `"Success":true`)
		},
		"networks are listed": func(e Exchange) bool {
			return e.Call == "HNSCall" && TextOf(e.In[1]) == "/networks/" && strings.Contains(string(e.Out[0]), `"tap-test"`)
		},
		"a network is removed": func(e Exchange) bool { return e.Call == "HNSCall" && TextOf(e.In[0]) == "DELETE" && e.Code == 0 },
		"adapters are listed": func(e Exchange) bool {
			return e.Service == IPHelper && e.Call == "GetIfTable2Ex" && strings.Contains(string(e.Out[0]), `"Alias"`)
		},
		"the build is read": func(e Exchange) bool {
			return e.Service == Registry && len(e.Out) > 0 && strings.Contains(string(e.Out[0]), `"CurrentBuild"`)
		},
	}
	for what, is := range wants {
		if !slices.ContainsFunc(r.exchanges, is) {
			t.Errorf("%s: not recorded", what)
		}
	}
	if hcn := slices.ContainsFunc(r.exchanges, func(e Exchange) bool { return e.Call == "HcnEnumerateNetworks" && len(e.Out) > 0 }); !hcn && !slices.ContainsFunc(missing, func(m string) bool { return strings.Contains(m, "no such function") }) {
		t.Error("the second interface is not recorded")
	}
}
