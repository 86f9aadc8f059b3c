package relay

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/proxy"
)

// TestSourcePortsWarning: users get a warning from time to time that connections to an endpoint use up this host's
// source ports.
func TestSourcePortsWarning(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	heard := make(chan string, 10)
	shared := newShared(&Config{Clock: clock, Warn: func(service proxy.ServiceName, reason, message string) {
		heard <- service.String() + " " + reason + ": " + message
	}})
	f := newFront(shared, Goroutines(shared), v1.ProtocolTCP)
	defer f.close()
	route := &proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: "x"}}, Protocol: v1.ProtocolTCP,
		Backends: []proxy.Endpoint{{Addr: netip.MustParseAddrPort("127.0.0.1:1")}, {Addr: netip.MustParseAddrPort("127.0.0.1:2")}}}
	if err := f.set(route, nil); err != nil {
		t.Fatal(err)
	}
	f.Crowded(1599, 1000) // of 2 x 1000
	f.Crowded(5000, 0)    // unknown
	f.Crowded(1600, 1000)
	if got := <-heard; !strings.HasPrefix(got, "a/x SourcePortsNearlyUsedUp: 1600 connections are open to 2 endpoints") {
		t.Errorf("heard %q", got)
	}
	f.Crowded(1700, 1000)
	f.Exhausted()
	clock.Step(warnEvery)
	f.Exhausted()
	if got := <-heard; !strings.Contains(got, "no source port left") {
		t.Errorf("heard %q", got)
	}
	select {
	case got := <-heard:
		t.Errorf("heard twice within %v: %q", warnEvery, got)
	default:
	}
}

// answering is a host that leads replies to clients back, or not.
type answering struct {
	can, does bool
	last      Local
	sets      int
}

func (a *answering) Set(_ context.Context, want Local) (bool, error) {
	a.last = want
	a.sets++
	return want.Answers && a.does, nil
}
func (a *answering) HoldsPorts(netip.Addr) bool                       { return true }
func (a *answering) LeadsAnswers() bool                               { return a.can }
func (a *answering) Host() ([]netip.Addr, error)                      { return nil, nil }
func (a *answering) Changes(context.Context) (<-chan struct{}, error) { return nil, nil }

// TestClientsAddress: endpoints see their clients' addresses if a Service needs that and the host can; otherwise the
// Service gets one warning.
func TestClientsAddress(t *testing.T) {
	for _, test := range []struct {
		name      string
		can, does bool
		warns     string // end of the message
	}{
		{"the host can", true, true, ""},
		{"the host cannot", false, false, "instead of the client's"},
		{"the host fails", true, false, "since this host has no nft or refuses its rules, which would lead the answers back"},
	} {
		t.Run(test.name, func(t *testing.T) {
			host := &answering{can: test.can, does: test.does}
			heard := make(chan string, 10)
			r := New(Goroutines, Config{Addresses: host, Clock: clock.RealClock{}, Warn: func(service proxy.ServiceName, reason, message string) {
				heard <- service.String() + " " + reason + ": " + message
			}})
			defer r.Close()
			name := proxy.ServiceName{Namespace: "a", Name: "x"}
			sync := func(keep bool, changed []proxy.ServiceName) {
				t.Helper()
				table := &proxy.Table{Routes: []proxy.Route{{Service: proxy.ServicePortName{ServiceName: name}, Kind: proxy.LoadBalancer, Protocol: v1.ProtocolTCP,
					Front: netip.MustParseAddrPort("203.0.113.9:80"), KeepClient: keep}}}
				if err := r.Sync(t.Context(), table, changed); err != nil {
					t.Fatal(err)
				}
			}
			sync(false, nil)
			if host.last.Answers || len(heard) > 0 || len(host.last.Ports) != 1 {
				t.Fatalf("no Service asks: %+v", host.last)
			}
			for range 2 {
				sync(true, []proxy.ServiceName{name})
				sync(true, nil)
			}
			if host.last.Answers != test.can || r.shared.keep.Load() != test.does {
				t.Errorf("asked: %+v, kept %v", host.last, r.shared.keep.Load())
			}
			switch {
			case test.warns == "" && len(heard) > 0, test.warns != "" && len(heard) != 1:
				t.Errorf("warned %d times", len(heard))
			case test.warns != "":
				if got := <-heard; !strings.HasPrefix(got, "a/x ClientAddressHidden: externalTrafficPolicy Local: ") || !strings.HasSuffix(got, test.warns) {
					t.Errorf("heard %q", got)
				}
			}
			sync(false, []proxy.ServiceName{name})
			if host.last.Answers || r.shared.keep.Load() {
				t.Error("still kept when no Service asks any more")
			}
		})
	}
}

// TestRanges: changed ranges of the Table reach the host with any Sync.
func TestRanges(t *testing.T) {
	host := &answering{}
	r := New(Goroutines, Config{Addresses: host, Clock: clock.RealClock{}})
	defer r.Close()
	table := &proxy.Table{ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}
	for range 2 {
		if err := r.Sync(t.Context(), table, []proxy.ServiceName{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(host.last.Ranges) != 1 || host.sets != 1 {
		t.Errorf("the host was told %v, %d times", host.last.Ranges, host.sets)
	}
	table.ServiceRanges = nil
	if err := r.Sync(t.Context(), table, []proxy.ServiceName{}); err != nil || len(host.last.Ranges) > 0 {
		t.Errorf("without ranges: %v, %v", host.last.Ranges, err)
	}
}

// TestSCTPBeside: if another back end serves SCTP, the relay complains about nothing and holds only ClusterIPs for it.
func TestSCTPBeside(t *testing.T) {
	route := func(kind proxy.Kind, front string) proxy.Route {
		return proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: "x"}}, Kind: kind, Protocol: v1.ProtocolSCTP,
			Front: netip.MustParseAddrPort(front), KeepClient: kind != proxy.ClusterIP, Backends: []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:7")}}}
	}
	table := &proxy.Table{Routes: []proxy.Route{route(proxy.ClusterIP, "10.96.0.9:80"), route(proxy.ExternalIP, "203.0.113.9:80"), route(proxy.NodePort, "0.0.0.0:30080")}}
	for beside, want := range map[bool]string{true: "[10.96.0.9], 0 errors, 0 warnings", false: "[10.96.0.9 203.0.113.9], 3 errors, 1 warnings"} {
		a, warnings := &answering{}, 0
		r := New(Goroutines, Config{Addresses: a, SCTPBeside: beside, Clock: clock.RealClock{}, Warn: func(proxy.ServiceName, string, string) { warnings++ }})
		errs, _ := proxy.RouteErrors(r.Sync(t.Context(), table, nil))
		if got := fmt.Sprintf("%v, %d errors, %d warnings", a.last.Addresses, len(errs), warnings); got != want {
			t.Errorf("beside %t: %s, want %s", beside, got, want)
		}
		if err := r.Sync(t.Context(), &proxy.Table{}, []proxy.ServiceName{{Namespace: "a", Name: "x"}}); err != nil || len(a.last.Addresses) > 0 {
			t.Errorf("beside %t, removed: %v, %v", beside, err, a.last.Addresses)
		}
		r.Close()
	}
}
