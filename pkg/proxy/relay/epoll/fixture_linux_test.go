package epoll

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

func newSubject() relaytest.Subject {
	return relaytest.Subject{New: New(runtime.GOMAXPROCS(0)), Refuses: os.Getuid() == 0, DialDropped: dialUnanswered, Leads: func() bool { return canLead() == nil }, Traces: traces}
}

// boundSubject is the Plane without the kernel's socket lookup.
func boundSubject() relaytest.Subject {
	s := newSubject()
	s.New = func(shared *relay.Shared) relay.Plane { return withoutLookup(shared) }
	s.Leads = func() bool { return false }
	return s
}

func withLookup(shared *relay.Shared) *plane { return newPlane(Loops(runtime.GOMAXPROCS(0)), shared) }

func withoutLookup(shared *relay.Shared) *plane {
	p := withLookup(shared)
	p.bound = true
	return p
}

func TestEpoll(t *testing.T) { relaytest.Run(t, newSubject()) }

// TestBound runs without the kernel's socket lookup what runs with it where it can be had.
func TestBound(t *testing.T) { relaytest.RunTCP(t, boundSubject()) }

// tuned is a Plane with as many processors more as it has loops, as package tuning gives them.
type tuned struct{ *plane }

func (p tuned) Close() {
	p.plane.Close()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) - p.count)
}

func BenchmarkEpoll(b *testing.B) {
	relaytest.Bench(b, func(s *relay.Shared) relay.Plane {
		p := withLookup(s)
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + p.count)
		return tuned{p}
	})
}

// planeOf is the plane of a host under test.
func planeOf(h *relaytest.Host) *plane { return h.Plane().(*plane) }

// canLead says why the kernel's socket lookup cannot be had here.
func canLead() error {
	var p *plane
	r := relay.New(func(s *relay.Shared) relay.Plane { p = withLookup(s); return p }, relay.Config{Addresses: relaytest.NewAddresses(), Clock: clock.RealClock{}})
	defer r.Close()
	if err := p.start(); err != nil {
		return err
	}
	l, err := newLookup(p)
	if err == nil {
		p.lookup = l
	}
	return err
}

func needsLookup(t *testing.T) {
	t.Helper()
	if err := canLead(); err != nil {
		t.Skipf("needs BPF sk_lookup: %v", err)
	}
}

// traces are the fronts that are still led.
func traces(of relay.Plane) (out []string) {
	p := of.(*plane)
	if p.lookup == nil {
		return nil
	}
	var key lookupKey
	var index uint32
	for entries := p.lookup.fronts.Iterate(); entries.Next(&key, &index); {
		out = append(out, fmt.Sprintf("lookup of %s port %d", netip.AddrFrom16(key.Addr), key.Port))
	}
	return append(out, "the lookup itself")
}

// ledFronts is what the metric says.
func ledFronts(t *testing.T, h *relaytest.Host) int {
	t.Helper()
	return h.Metric(t, "kubeproxy_relay_fronts_by_lookup", "")
}

// hostAddresses are those of the test's namespace, with ranges whatever the Table says.
type hostAddresses struct {
	relay.Addresses
	ranges []netip.Prefix
}

func (a *hostAddresses) Set(ctx context.Context, want relay.Local) (bool, error) {
	want.Ranges = a.ranges
	return a.Addresses.Set(ctx, want)
}

// ranged puts the test into a namespace whose services have ranges; it skips where nftables cannot guard them.
func ranged(t *testing.T, ranges ...string) *hostAddresses {
	t.Helper()
	nstest.In(t)
	if _, err := command.New().Run(t.Context(), nil, "nft", "--version"); err != nil {
		t.Skipf("needs nft: %v", err)
	}
	return withRanges(t, ranges...)
}

func withRanges(t *testing.T, ranges ...string) *hostAddresses {
	t.Helper()
	a, err := addresses.NewWith(command.New(), "")
	if err != nil {
		t.Fatal(err)
	}
	out := &hostAddresses{Addresses: a}
	for _, text := range ranges {
		out.ranges = append(out.ranges, netip.MustParsePrefix(text))
	}
	return out
}

// hold has the host hold addresses, and says whether answers to clients come back.
func hold(t *testing.T, a *hostAddresses, local relay.Local) (answers bool) {
	t.Helper()
	answers, err := a.Set(t.Context(), local)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}
