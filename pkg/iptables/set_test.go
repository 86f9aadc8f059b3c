package iptables

import (
	"errors"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/command/commandtest"
)

// keeperHost is a host with rules of others, and a Keeper.
type keeperHost struct {
	*model
	run *commandtest.Runner
	*Keeper
}

func newKeeperHost() *keeperHost {
	h := &keeperHost{model: newModel(), run: commandtest.New()}
	h.install(h.run, "iptables")
	h.chains["nat PREROUTING"] = []string{"-i lan0 -j ACCEPT", "-j DOCKER"}
	h.chains["filter INPUT"] = []string{"-j KEEP"}
	h.Keeper = NewKeeper(h.run, "iptables", "WINKUBE-X", "nat", "filter")
	return h
}

// set returns what was run.
func (h *keeperHost) set(t *testing.T, want Set, compare bool) string {
	t.Helper()
	h.run.Transcript() // what was run before
	if _, err := h.Set(t.Context(), want, compare); err != nil {
		t.Fatal(err)
	}
	return h.run.Transcript()
}

func setOf(rules ...string) Set {
	return Set{Chains: []Chain{{"nat", "WINKUBE-X", []string{"-p sctp -j WINKUBE-X-1"}}, {"nat", "WINKUBE-X-1", rules}, {"filter", "WINKUBE-X-IN", []string{"-j DROP"}}},
		Jumps: []Jump{{"nat", "PREROUTING", "WINKUBE-X", "-p sctp", func(target string) bool { return target == "DOCKER" }}, {"filter", "INPUT", "WINKUBE-X-IN", "", nil}}}
}

func TestKeeper(t *testing.T) {
	h := newKeeperHost()
	clean := h.save("nat") + h.save("filter")
	one, two := setOf("-j ACCEPT"), setOf("-s 10.0.0.0/8 -j ACCEPT", "-j RETURN")
	got := h.set(t, one, true)
	want := `$ iptables-save
$ iptables-restore --noflush -w 5
< *nat
< :WINKUBE-X - [0:0]
< :WINKUBE-X-1 - [0:0]
< -A WINKUBE-X -p sctp -j WINKUBE-X-1
< -A WINKUBE-X-1 -j ACCEPT
< -I PREROUTING 2 -p sctp -j WINKUBE-X
< COMMIT
< *filter
< :WINKUBE-X-IN - [0:0]
< -A WINKUBE-X-IN -j DROP
< -I INPUT 1 -j WINKUBE-X-IN
< COMMIT
$ iptables-save
`
	if got != want {
		t.Errorf("the first time:\n%s\nwant:\n%s", got, want)
	}
	if got := h.set(t, one, false); got != "" {
		t.Errorf("without a change:\n%s", got)
	}
	if got := h.set(t, one, true); got != "$ iptables-save\n" {
		t.Errorf("compared without a change:\n%s", got)
	}
	if got := h.set(t, two, false); !strings.Contains(got, "< :WINKUBE-X-1 - [0:0]\n< -A WINKUBE-X-1 -s 10.0.0.0/8 -j ACCEPT\n< -A WINKUBE-X-1 -j RETURN\n< COMMIT") || strings.Contains(got, "< :WINKUBE-X - ") {
		t.Errorf("one chain changes:\n%s", got)
	}
	right := h.save("nat") + h.save("filter")
	for name, damage := range map[string]func(){
		"another rule":          func() { h.chains["nat WINKUBE-X-1"] = append(h.chains["nat WINKUBE-X-1"], "-j DROP") },
		"a chain is gone":       func() { delete(h.chains, "nat WINKUBE-X-1") },
		"no jump":               func() { h.chains["filter INPUT"] = []string{"-j KEEP"} },
		"a second jump":         func() { h.chains["filter INPUT"] = []string{"-j WINKUBE-X-IN", "-j KEEP", "-j WINKUBE-X-IN"} },
		"another jump":          func() { h.chains["filter INPUT"] = []string{"-p sctp -j WINKUBE-X-IN", "-j KEEP"} },
		"a jump from elsewhere": func() { h.chains["filter FORWARD"] = append(h.chains["filter FORWARD"], "-j WINKUBE-X-IN") },
		"after Docker": func() {
			h.chains["nat PREROUTING"] = []string{"-i lan0 -j ACCEPT", "-j DOCKER", "-p sctp -j WINKUBE-X"}
		},
		"an old chain": func() {
			h.chains["nat WINKUBE-X-0"], h.chains["nat WINKUBE-X-9"] = []string{"-j WINKUBE-X-9"}, []string{"-j ACCEPT"}
		},
	} {
		damage()
		h.set(t, two, true)
		if got := h.save("nat") + h.save("filter"); got != right {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, right)
		}
	}
	if next := NewKeeper(h.run, "iptables", "WINKUBE-X", "nat", "filter"); next.Holds() {
		t.Error("a Keeper that has seen nothing holds something")
	} else if written, err := next.Set(t.Context(), two, true); written || err != nil || !next.Holds() {
		t.Errorf("the next Keeper writes: %t, %v", written, err)
	}
	h.Keeper = NewKeeper(h.run, "iptables", "WINKUBE-X", "nat", "filter")
	h.set(t, Set{}, true)
	if got := h.save("nat") + h.save("filter"); got != clean || h.Holds() {
		t.Errorf("removed:\n%s\nwant:\n%s", got, clean)
	}
	if got := h.set(t, Set{}, true); got != "" {
		t.Errorf("removed again:\n%s", got)
	}
}

// What a host prints differently is learned when it is written, so that it is not written again.
func TestKeeperLearnsPrinting(t *testing.T) {
	h := newKeeperHost()
	h.run.Install("iptables-save", func([]byte, []string) ([]byte, error) {
		return []byte(strings.ReplaceAll(h.save("filter")+h.save("nat"), "-p sctp -j", "-p 132 -j")), nil
	})
	h.set(t, setOf("-j ACCEPT"), true)
	if got := h.set(t, setOf("-j ACCEPT"), true); got != "$ iptables-save\n" {
		t.Errorf("written again:\n%s", got)
	}
	h.chains["nat WINKUBE-X"] = []string{"-p udp -j WINKUBE-X-1"}
	if got := h.set(t, setOf("-j ACCEPT"), true); !strings.Contains(got, "-A WINKUBE-X -p sctp") {
		t.Errorf("not repaired:\n%s", got)
	}
}

// Failures are errors, and nothing is forgotten.
func TestKeeperFails(t *testing.T) {
	h := newKeeperHost()
	var refused *command.ExitError
	h.run.Install("iptables-restore", func([]byte, []string) ([]byte, error) { return nil, commandtest.Exit(2, "no") })
	if _, err := h.Set(t.Context(), setOf("-j ACCEPT"), false); !errors.As(err, &refused) || !h.Holds() {
		t.Errorf("got %v; a table may have been written", err)
	}
	h.install(h.run, "iptables")
	h.set(t, setOf("-j ACCEPT"), false)
	h.run.Install("iptables-save", nil)
	if _, err := h.Set(t.Context(), Set{}, false); !errors.Is(err, command.ErrNotFound) || !h.Holds() {
		t.Errorf("rules that cannot be removed are forgotten: %v", err)
	}
	h.install(h.run, "iptables")
	h.set(t, Set{}, false)
	if text := h.save("nat"); strings.Contains(text, "WINKUBE") {
		t.Errorf("left:\n%s", text)
	}
	none := NewKeeper(commandtest.New(), "iptables", "WINKUBE-X", "nat")
	if _, err := none.Set(t.Context(), Set{}, true); err != nil {
		t.Errorf("a host without iptables: %v", err)
	}
	if _, err := none.Set(t.Context(), setOf(), true); !errors.Is(err, command.ErrNotFound) || !strings.Contains(err.Error(), "install the package iptables") {
		t.Errorf("a host without iptables: %v", err)
	}
}
