package choose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// testRoute is a Route to backends, "t" after those that terminate.
func testRoute(backends ...string) proxy.Route {
	r := proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: "x"}}, Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP,
		Front: netip.MustParseAddrPort("10.96.0.1:80")}
	for _, text := range backends {
		addr, terminating := strings.CutSuffix(text, "t")
		r.Backends = append(r.Backends, proxy.Endpoint{Addr: netip.MustParseAddrPort(addr), Terminating: terminating})
	}
	slices.SortFunc(r.Backends, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return r
}

func newChooser() (*Chooser, *clocktesting.FakeClock) {
	clock := clocktesting.NewFakeClock(time.Now())
	return New(clock, NewClients(limits.Total("affinity_clients", "closed"))), clock
}

const a, b, c = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"

// TestNext says for each Route which endpoints new connections of one client get, in any order, and which it has in a row.
func TestNext(t *testing.T) {
	for _, test := range []struct {
		name     string
		backends []string
		affinity time.Duration
		failed   []string
		tried    []string
		want     []string // of six connections, sorted, without repetition
	}{
		{name: "none"},
		{name: "one", backends: []string{a}, want: []string{a}},
		{name: "in turn", backends: []string{a, b, c}, want: []string{a, b, c}},
		{name: "draining ones get nothing new", backends: []string{a, b + "t", c}, want: []string{a, c}},
		{name: "unless nothing else is left", backends: []string{a + "t", b + "t"}, want: []string{a, b}},
		{name: "failed ones are avoided", backends: []string{a, b, c}, failed: []string{b}, want: []string{a, c}},
		{name: "unless all have failed", backends: []string{a, b + "t"}, failed: []string{a}, want: []string{a}},
		{name: "what was tried is not tried again", backends: []string{a, b, c}, tried: []string{a, c}, want: []string{b}},
		{name: "a failed one before none", backends: []string{a, b}, failed: []string{a}, tried: []string{b}, want: []string{a}},
		{name: "all were tried", backends: []string{a, b}, tried: []string{a, b}},
		{name: "what failed and is gone is forgotten", backends: []string{a}, failed: []string{c}, want: []string{a}},
	} {
		t.Run(test.name, func(t *testing.T) {
			chooser, _ := newChooser()
			route := testRoute(test.backends...)
			chooser.Set(&route)
			for _, text := range test.failed {
				chooser.Failed(netip.MustParseAddrPort(text))
			}
			var tried []netip.AddrPort
			for _, text := range test.tried {
				tried = append(tried, netip.MustParseAddrPort(text))
			}
			var got []string
			for range 6 {
				if endpoint, ok := chooser.Next(addrOfClient(1), tried); ok {
					got = append(got, endpoint.String())
				}
			}
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestAvoided: a failed endpoint gets traffic again after a while, also when the Route has changed meanwhile.
func TestAvoided(t *testing.T) {
	chooser, clock := newChooser()
	route := testRoute(a, b)
	chooser.Set(&route)
	chooser.Failed(netip.MustParseAddrPort(a))
	more := testRoute(a, b, c)
	chooser.Set(&more)
	gets := func() bool {
		for range 6 {
			if endpoint, _ := chooser.Next(addrOfClient(1), nil); endpoint.String() == a {
				return true
			}
		}
		return false
	}
	if gets() {
		t.Error("a failed endpoint gets traffic while others are there")
	}
	clock.Step(avoidFor)
	if !gets() {
		t.Error("it gets none after its time")
	}
}

// TestAffinity: a client has the endpoint that it had, as long as it comes within the time and the endpoint takes new traffic.
func TestAffinity(t *testing.T) {
	chooser, clock := newChooser()
	set := func(backends ...string) {
		route := testRoute(backends...)
		route.Affinity = time.Minute
		chooser.Set(&route)
	}
	next := func(tried ...netip.AddrPort) netip.AddrPort {
		t.Helper()
		endpoint, ok := chooser.Next(addrOfClient(1), tried)
		if !ok {
			t.Fatal("no endpoint")
		}
		return endpoint
	}
	set(a, b)
	first := next()
	for range 5 {
		clock.Step(50 * time.Second) // each connection renews it
		if again := next(); again != first {
			t.Fatalf("%s and then %s", first, again)
		}
	}
	second := next(first)
	if second == first || next() != second {
		t.Errorf("after a failure the client does not stay with %s", second)
	}
	clock.Step(time.Minute)
	if again := next(); again == second {
		t.Error("after its time the client has its endpoint still") // the turn goes on to the next
	}
	had := next()
	if had.String() == a {
		set(a+"t", b)
	} else {
		set(a, b+"t")
	}
	if again := next(); again == had {
		t.Errorf("the client still goes to %s, which drains", had)
	}
	if !chooser.Leads(had) {
		t.Error("what is connected to a draining endpoint may not stay")
	}
	set(c)
	if chooser.Leads(had) || next().String() != c {
		t.Error("the client does not leave an endpoint that is gone")
	}
}

// TestSearch goes through a connection's search: what is done, with which patience, after each endpoint has failed.
func TestSearch(t *testing.T) {
	for _, test := range []struct {
		name     string
		backends []string
		drop     bool
		want     string
	}{
		{"no endpoint", nil, false, "give up"},
		{"no endpoint, and the front drops", nil, true, "hold"},
		{"one", []string{a}, false, "dial 10s, give up"},
		{"one, and the front would drop", []string{a}, true, "dial 10s, give up"},
		{"three", []string{a, b, c}, false, "dial 1s, dial 1s, dial 10s, give up"},
		{"six", []string{a, b, c, "10.0.0.4:1", "10.0.0.5:1", "10.0.0.6:1"}, false, "dial 1s, dial 1s, dial 1s, dial 1s, dial 10s, give up"},
	} {
		chooser, _ := newChooser()
		route := testRoute(test.backends...)
		route.Drop = test.drop
		chooser.Set(&route)
		var search Search
		var got []string
		for done := false; !done; {
			step := search.Next(chooser, addrOfClient(1))
			switch step.Do {
			case Dial:
				got = append(got, "dial "+step.Patience.String())
				search.Failed(chooser, step.Endpoint)
			case Hold:
				got, done = append(got, "hold"), true
			case GiveUp:
				got, done = append(got, "give up"), true
			}
		}
		if text := strings.Join(got, ", "); text != test.want {
			t.Errorf("%s: %s, want %s", test.name, text, test.want)
		}
	}
}

// TestSkip: an endpoint without room is left out by this connection only.
func TestSkip(t *testing.T) {
	chooser, _ := newChooser()
	route := testRoute(a, b)
	chooser.Set(&route)
	var search Search
	first := search.Next(chooser, addrOfClient(1)).Endpoint
	search.Skip(first)
	if second := search.Next(chooser, addrOfClient(1)).Endpoint; second == first {
		t.Errorf("%s is tried again", first)
	}
	seen := map[netip.AddrPort]bool{}
	for range 4 {
		endpoint, _ := chooser.Next(addrOfClient(2), nil)
		seen[endpoint] = true
	}
	if !seen[first] {
		t.Errorf("others avoid %s", first)
	}
	search.Done()
	if step := search.Next(chooser, addrOfClient(1)); step.Do != Dial || step.Patience != DialTimeout {
		t.Errorf("after Done: %+v", step)
	}
}
