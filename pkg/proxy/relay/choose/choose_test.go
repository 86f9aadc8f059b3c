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

// testRoute returns a Route to back ends, with "t" after those that terminate.
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
	return New(clock, NewClients(limits.Total("affinity_clients", "closed")), &Near{}), clock
}

const a, b, c = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"

// TestNext checks for each Route which endpoints one client's new connections get, in any order.
func TestNext(t *testing.T) {
	for _, test := range []struct {
		name     string
		backends []string
		affinity time.Duration
		failed   []string
		tried    []string
		want     []string // of six connections, sorted, without duplicates
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

// TestAvoided: a failed endpoint gets traffic again after a while, even if the Route has changed meanwhile.
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

// TestAffinity: a client keeps its endpoint as long as it connects within the affinity time and the endpoint accepts
// new traffic.
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
		t.Error("after its time the client has its endpoint still") // round robin continues with the next
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
	if !chooser.Leads(addrOfClient(1), had) {
		t.Error("what is connected to a draining endpoint may not stay")
	}
	set(c)
	if chooser.Leads(addrOfClient(1), had) || next().String() != c {
		t.Error("the client does not leave an endpoint that is gone")
	}
}

// TestNear: only clients on this node get what the Route has for them, and only they keep it. The others of a front that
// drops wait.
func TestNear(t *testing.T) {
	chooser, _ := newChooser()
	chooser.near.Set([]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd01::1/128")})
	route := testRoute(a)
	route.KeepClient, route.Near = true, testRoute(a, b, c+"t").Backends
	chooser.Set(&route)
	gets := func(client string) string {
		var got []string
		for range 6 {
			endpoint, ok := chooser.Next(netip.MustParseAddr(client), nil)
			if !ok {
				return "none"
			}
			got = append(got, endpoint.String())
		}
		slices.Sort(got)
		return strings.Join(slices.Compact(got), " ")
	}
	for client, want := range map[string]string{"10.244.1.9": a + " " + b, "fd01::1": a + " " + b, route.Front.Addr().String(): a + " " + b, "10.244.2.9": a, "fd01::2": a} {
		if got := gets(client); got != want {
			t.Errorf("%s gets %s, want %s", client, got, want)
		}
	}
	near, far := netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("10.244.2.9")
	if there := netip.MustParseAddrPort(c); !chooser.Leads(near, there) || chooser.Leads(far, there) {
		t.Error("an endpoint that drains leads clients elsewhere, or not those here")
	}
	if !chooser.Keeps(netip.MustParseAddrPort(a)) || chooser.Keeps(netip.MustParseAddrPort(b)) {
		t.Error("the client's address is kept towards an endpoint on another node, or not towards one here")
	}
	chooser.Failed(netip.MustParseAddrPort(b))
	if got := gets("10.244.1.9"); got != a {
		t.Errorf("after a failure: %s", got)
	}

	route = testRoute()
	route.KeepClient, route.Drop, route.Near = true, true, testRoute(c).Backends
	chooser.Set(&route)
	for client, want := range map[netip.Addr]Step{near: {Dial, netip.MustParseAddrPort(c), LastDialTimeout}, far: {Do: Hold}} {
		var search Search
		if got := search.Next(chooser, client); got != want {
			t.Errorf("without an endpoint here, the first step for %s: %+v, want %+v", client, got, want)
		}
	}
	if !chooser.near.Set(nil) || chooser.near.Set(nil) || gets("10.244.1.9") != "none" {
		t.Error("clients are still on this node")
	}
}

// TestSearch checks the steps of a connection's search, with their timeouts, after each endpoint has failed.
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

// TestSkip: only this connection skips an endpoint without room.
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
