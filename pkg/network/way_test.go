package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/report"
)

// told is a proxy that says something.
type told struct {
	list []report.Trouble
	err  error
	now  chan struct{} // a change
}

func (w *told) Read() ([]report.Trouble, error) { return w.list, w.err }

func (w *told) Watch(ctx context.Context, changed func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.now:
			changed()
		}
	}
}

// What the proxy says stands on the Node, does not stop pods, and is taken back when packets find their way again, one to each range.
func TestWay(t *testing.T) {
	ctx := t.Context()
	r := newTroubled(t, Config{Mode: HostGateway, Platform: onLinux})
	proxy := &told{}
	r.parts.Way = proxy
	blocked := true
	var probed []string
	r.parts.ProbeTo = func(_ context.Context, from netip.Addr, to netip.Prefix) error {
		probed = append(probed, fmt.Sprintf("%s to %s", from, to))
		if blocked {
			return errors.New("connection timed out")
		}
		return nil
	}
	r.SetNode(nodeWith("10.244.1.0/24"))
	if err := r.sync(ctx); err != nil || r.said() != "nothing" {
		t.Fatalf("%v; said %s", err, r.said())
	}
	proxy.list = []report.Trouble{
		{Reason: "RouteConflict", Message: "a route to node2 is there", To: netip.MustParsePrefix("10.244.2.0/24")},
		{Reason: "RouteConflict", Message: "a route to node3 is there", To: netip.MustParsePrefix("10.244.3.0/24")},
	}
	r.lasting(ctx)
	if r.said() != "RouteConflict: a route to node2 is there; a route to node3 is there" {
		t.Error(r.said())
	}
	wantErr(t, r.Manager, "")
	proxy.list = nil
	if err := r.sync(ctx); err == nil || !strings.Contains(err.Error(), "stays marked NetworkUnavailable: no way to the pods of 10.244.2.0/24: connection timed out") {
		t.Error(err)
	}
	blocked, probed = false, nil
	if err := r.sync(ctx); err != nil || r.said() != "available NetworkReady" {
		t.Errorf("%v; said %s", err, r.said())
	}
	if want := []string{"10.244.1.1 to 10.244.2.0/24", "10.244.1.1 to 10.244.3.0/24"}; !slices.Equal(probed, want) {
		t.Errorf("probed %q, want %q", probed, want)
	}
	// A node that never answers has gone with its route.
	proxy.list, blocked = []report.Trouble{{Reason: "RouteConflict", Message: "a route to node4 is there", To: netip.MustParsePrefix("10.244.4.0/24")}}, true
	r.lasting(ctx)
	proxy.list = nil
	for _, after := range []time.Duration{0, goneAfter} {
		r.clock.Step(after)
		if err := r.sync(ctx); err == nil || !strings.Contains(err.Error(), "10.244.4.0/24") {
			t.Errorf("after %s: %v", after, err)
		}
	}
	r.clock.Step(time.Second)
	if err := r.sync(ctx); err != nil || r.said() != "available NetworkReady" {
		t.Errorf("%v; said %s", err, r.said())
	}
	// Another trouble: the ranges of the first are forgotten, and what cannot be read is no trouble.
	proxy.list = []report.Trouble{{Reason: "PodCIDROverlaps", Message: "node0 has it"}}
	r.lasting(ctx)
	probed, proxy.list, proxy.err = nil, nil, errors.New("spoilt")
	if err := r.sync(ctx); err != nil || r.said() != "available NetworkReady" || len(probed) > 0 {
		t.Errorf("%v; said %s; probed %q", err, r.said(), probed)
	}
	want := "Warning RouteConflict, Normal NetworkReady, Warning RouteConflict, Normal NetworkReady, Warning PodCIDROverlaps, Normal NetworkReady"
	if got := strings.Join(r.events, ", "); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
}

// A change of what the proxy says is looked at without waiting for a comparison.
func TestFollowWay(t *testing.T) {
	m, _, _ := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	proxy := &told{now: make(chan struct{})}
	m.parts.Way = proxy
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		m.followWay(ctx)
		close(done)
	}()
	proxy.now <- struct{}{}
	<-m.wake
	cancel()
	<-done
}
