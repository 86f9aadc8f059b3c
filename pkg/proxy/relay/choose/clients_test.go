package choose

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

func addrOfClient(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// stickyFronts returns the Choosers of fronts with session affinity and two endpoints, as in one Relay.
func stickyFronts(clock *clocktesting.FakeClock, n int) (*Clients, []*Chooser) {
	s := NewClients(limits.Total("affinity_clients", "closed"))
	r := testRoute("10.0.0.1:1", "10.0.0.2:1")
	r.Affinity = time.Hour
	var out []*Chooser
	for range n {
		b := New(clock, s, nil)
		b.Set(&r)
		out = append(out, b)
	}
	return s, out
}

// TestAffinityFlood: a million forged clients cost a few MiB, and those of another front keep their endpoints.
func TestAffinityFlood(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	s, fronts := stickyFronts(clock, 6)
	victim := fronts[5]
	had := map[netip.Addr]netip.AddrPort{}
	for n := range 500 {
		had[addrOfClient(1<<20+n)], _ = victim.Next(addrOfClient(1<<20+n), nil)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for n := range 1000000 {
		if _, ok := fronts[n%5].Next(addrOfClient(n), nil); !ok {
			t.Fatal("no endpoint is picked")
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	all, most := s.Used()
	t.Logf("%d remembered, %d at one front, %d KiB", all, most, (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10)
	if all > MaxClients || most > MaxFrontClients {
		t.Errorf("%d are remembered, %d at one front", all, most)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("they cost %d MiB", grown>>20)
	}
	for client, target := range had {
		if got, _ := victim.Next(client, nil); got != target {
			t.Fatalf("%s went to %s and then to %s", client, target, got)
		}
	}
	runtime.KeepAlive(fronts)
}

// TestAffinityEnds: expired clients are removed with new ones, with the full comparison, and with their front.
func TestAffinityEnds(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	s, fronts := stickyFronts(clock, 2)
	check := func(want int, when string) {
		t.Helper()
		if got, _ := s.Used(); got != want {
			t.Errorf("%s: %d are remembered, want %d", when, got, want)
		}
	}
	for n := range 1000 {
		_, _ = fronts[0].Next(addrOfClient(n), nil)
	}
	clock.Step(30 * time.Minute)
	_, _ = fronts[0].Next(addrOfClient(7), nil)
	clock.Step(30 * time.Minute)
	check(1000, "before their time is over")
	_, _ = fronts[0].Next(addrOfClient(7), nil)
	check(1000-expireEach, "some go with one who comes")
	fronts[0].Expire()
	check(1, "all but the one that was renewed")
	for n := range 10 {
		_, _ = fronts[1].Next(addrOfClient(n), nil)
	}
	check(11, "of two fronts")
	fronts[1].Close()
	check(1, "a front has gone")
	none := testRoute("10.0.0.1:1")
	fronts[0].Set(&none)
	check(0, "without affinity")
	if s.fronts.Top() != 0 {
		t.Errorf("a front still counts %d", s.fronts.Top())
	}
}
