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

// TestBound repeats the TCP tests without the kernel's socket lookup, which TestEpoll uses if it is available.
func TestBound(t *testing.T) { relaytest.RunTCP(t, boundSubject()) }

// tuned is a Plane with one more processor for each loop, as with package tuning.
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

// planeOf returns the plane of a host under test.
func planeOf(h *relaytest.Host) *plane { return h.Plane().(*plane) }

// canLead says why the kernel's socket lookup is not available here.
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

// traces returns the fronts that still use the lookup.
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

// ledFronts returns the value of the metric.
func ledFronts(t *testing.T, h *relaytest.Host) int {
	t.Helper()
	return h.Metric(t, "kubeproxy_relay_fronts_by_lookup", "")
}

// hostAddresses are the addresses of the test's namespace, with ranges that replace those of the Table.
type hostAddresses struct {
	relay.Addresses
	ranges []netip.Prefix
}

func (a *hostAddresses) Set(ctx context.Context, want relay.Local) (bool, error) {
	want.Ranges = a.ranges
	return a.Addresses.Set(ctx, want)
}

// ranged moves the test into a namespace whose services have ranges; it skips the test if nftables cannot guard them.
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

// hold makes addresses local, and reports whether replies to clients come back.
func hold(t *testing.T, a *hostAddresses, local relay.Local) (answers bool) {
	t.Helper()
	answers, err := a.Set(t.Context(), local)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}
