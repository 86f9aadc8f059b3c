package containers

import (
	"testing"

	"github.com/docker/docker/api/types/container"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// What this agent creates and starts is inspected once, in any order of the start's end, its event and the inspection; and changes by others are
// never missed.
func TestCacheInspectsOnce(t *testing.T) {
	const created, running = string(container.StateCreated), string(container.StateRunning)
	for _, test := range []struct {
		name    string
		happens []string
		want    string // state that is valid without another inspection
		looks   int
	}{
		{"made", []string{"made", "look"}, created, 0},
		{"event first", []string{"made", "starting", "event", "end", "look", "look"}, running, 1},
		{"event late", []string{"made", "starting", "end", "look", "event", "look"}, running, 1},
		{"event while it is looked at", []string{"made", "starting", "end", "begin", "event", "answer", "look"}, running, 1},
		{"looked at while it starts", []string{"made", "starting", "look", "event", "look", "end", "look"}, running, 1},
		{"event and end while it is looked at", []string{"made", "starting", "event", "begin", "end", "answer", "look"}, running, 2},
		{"start failed", []string{"made", "starting", "drop", "look"}, running, 1},
		{"started by others", []string{"made", "event", "look"}, running, 1},
		{"... twice", []string{"made", "starting", "end", "look", "event", "drop", "event", "look"}, running, 2},
		{"died immediately", []string{"made", "starting", "event", "end", "begin", "drop", "answer", "look"}, running, 2},
		{"died before its event came", []string{"made", "starting", "end", "drop", "event", "look"}, running, 1},
		{"found", []string{"see", "look", "look"}, running, 1},
		{"on its network by its start", []string{"made", "starting", "on", "end", "event", "look"}, running, 1},
		{"off its network", []string{"see", "look", "off", "look"}, running, 2},
		{"off while it is looked at", []string{"see", "begin", "off", "answer", "look"}, running, 2},
		{"off and on again", []string{"see", "look", "off", "look", "on", "look"}, running, 3},
	} {
		c := newCache()
		c.stream(1)
		looks, version, known := 0, uint64(0), ""
		begin := func() bool {
			_, v, ok := c.get("uid", "id", known)
			version = v
			return ok
		}
		state := func() string {
			if e := c.entries["id"]; e != nil {
				return e.state
			}
			return ""
		}
		answer := func() {
			looks++
			c.put("id", running, seen{container: &pod.Container{}}, version, false)
		}
		for _, what := range test.happens {
			known = state()
			switch what {
			case "made":
				c.made("uid", "id", seen{container: &pod.Container{}})
			case "see":
				c.see("uid", "id")
			case "starting":
				c.starting("id")
			case "end":
				c.started("id")
			case "event":
				c.toldStarted("id")
			case "drop":
				c.drop("id")
			case "off", "on":
				c.rewired("id", what == "on")
			case "begin":
				begin()
			case "answer":
				answer()
			case "look":
				if !begin() {
					answer()
				}
			}
		}
		if state() != test.want || looks != test.looks {
			t.Errorf("%s: %q after %d looks; want %q after %d", test.name, state(), looks, test.want, test.looks)
		}
	}
}

// TestCacheLost: containers may have gone before the first list, while no events came, and whenever one is removed.
func TestCacheLost(t *testing.T) {
	c := newCache()
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"a new cache", func() {}, true},
		{"asked again", func() {}, false},
		{"one came", func() { c.see("uid", "id") }, false},
		{"one changed", func() { c.drop("id") }, false},
		{"an unknown one went", func() { c.gone("other") }, false},
		{"one went", func() { c.gone("id") }, true},
		{"events come again", func() { c.stream(1) }, true},
		{"listed as before", func() { c.listed(map[string]types.UID{"id": "uid"}, c.mark()) }, false},
		{"missing in a list", func() { c.listed(nil, c.mark()) }, true},
	} {
		step.do()
		if got := c.lost(); got != step.want {
			t.Errorf("%s: %t", step.what, got)
		}
	}
}
