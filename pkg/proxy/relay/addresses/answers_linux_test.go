package addresses

import (
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
)

// TestRulesTakenAway: the removal of our rules or routes is noticed, and the next Set restores them.
func TestRulesTakenAway(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	if !a.LeadsAnswers() {
		t.Skip("sockets with a client's address are not allowed here")
	}
	hints, err := a.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.local.Answers = true
	hold(t, a, "10.96.0.1")
	const there = "2 rules, 2 routes, marked"
	for _, taken := range []string{"nft flush ruleset", "nft delete table inet winkube-proxy", "nft flush chain inet winkube-proxy input", "ip rule del priority 119", "ip route flush table 119"} {
		if _, err := command.New().Run(t.Context(), nil, "nft", "add", "table", "inet", "another"); err != nil {
			t.Fatal(err)
		}
		for quiet := false; !quiet; { // hints of our own changes
			select {
			case <-hints:
			case <-time.After(200 * time.Millisecond):
				quiet = true
			}
		}
		words := strings.Fields(taken)
		if _, err := command.New().Run(t.Context(), nil, words[0], words[1:]...); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
		case <-time.After(time.Minute):
			t.Errorf("%s: no hint", taken)
		}
		hold(t, a, "10.96.0.1")
		if got := nstest.AnswerTraces(t); got != there {
			t.Errorf("after %s: %s; want %s", taken, got, there)
		}
	}
}

// TestAnswersLed: replies to clients come back here while a Service needs that; with the last such Service, all rules
// and routes are removed.
func TestAnswersLed(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	if !a.LeadsAnswers() {
		t.Skip("sockets with a client's address are not allowed here")
	}
	for _, wanted := range []bool{true, true, false, true} {
		a.local.Answers = wanted
		want := "0 rules, 0 routes"
		if wanted {
			want = "2 rules, 2 routes, marked"
		}
		if led := hold(t, a, "10.96.0.1"); led != wanted || nstest.AnswerTraces(t) != want {
			t.Errorf("wanted %v: led %v, %s", wanted, led, nstest.AnswerTraces(t))
		}
	}
	cleanUp(t)
	if got := nstest.AnswerTraces(t); got != "0 rules, 0 routes" {
		t.Errorf("cleaned up: %s", got)
	}
}
