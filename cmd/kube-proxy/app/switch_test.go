package app

import (
	"errors"
	"testing"
)

// TestSwitchMaker: the switch is created once, when it is known to be missing; after that an adapter with the other
// name is accepted too, even if HNS refuses.
func TestSwitchMaker(t *testing.T) {
	refusal, blind := errors.New("E_INVALIDARG"), errors.New("access denied")
	for _, c := range []struct {
		name    string
		before  string // the adapter that exists at first
		after   string // after the switch is created
		refused error
		unknown bool // the first look fails
		want    string
		made    int
	}{
		{name: "there", before: "better", want: "better"},
		{name: "made", after: "better", want: "better", made: 1},
		{name: "made with the other name", after: "other", want: "other", made: 1},
		{name: "the other name is another network's at first", before: "other", after: "better", want: "better", made: 1},
		{name: "refused, the other name is there", before: "other", refused: refusal, want: "other", made: 1},
		{name: "refused, nothing there", refused: refusal, made: 1},
		{name: "not known at first", unknown: true, after: "better", want: "better", made: 1},
	} {
		adapters, made, looks := map[string]bool{c.before: true}, 0, 0
		m := switchMaker{names: []string{"better", "other"}, exists: func(name string) (bool, error) {
			if looks++; c.unknown && looks == 1 {
				return false, blind
			}
			return adapters[name], nil
		}, create: func() error {
			made++
			adapters[c.after] = true
			return c.refused
		}}
		got := ""
		for range 3 {
			name, err := m.step()
			if got = name; name != "" || m.refused != nil && err == nil { // as in makeSwitch
				break
			}
		}
		if got != c.want || made != c.made || !errors.Is(m.refused, c.refused) {
			t.Errorf("%s: %q, made %d times, %v; want %q, %d", c.name, got, made, m.refused, c.want, c.made)
		}
	}
}
