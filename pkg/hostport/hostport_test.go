package hostport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	clocktest "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/proxy"
)

var (
	v4    = netip.MustParseAddr("10.244.1.7")
	v6    = netip.MustParseAddr("fd00::7")
	card  = netip.MustParseAddr("10.1.0.11")
	card6 = netip.MustParseAddr("fd01::11")
)

func TestRoutes(t *testing.T) {
	web := pod.HostPort{Port: 8080, Protocol: v1.ProtocolTCP, ContainerPort: 80}
	dns := pod.HostPort{Port: 53, Protocol: v1.ProtocolUDP, ContainerPort: 5353}
	on := func(ip netip.Addr) pod.HostPort { p := web; p.IP = ip; return p }
	box := func(ports []pod.HostPort, addresses ...netip.Addr) pod.Observed {
		return pod.Observed{Namespace: "shop", Name: "web", Sandboxes: []pod.Sandbox{{ID: "box", Running: true, Addresses: addresses, HostPorts: ports}}}
	}
	stopped := box([]pod.HostPort{web}, v4)
	stopped.Sandboxes[0].Running = false
	older := box([]pod.HostPort{web}, v4)
	older.Sandboxes = append(older.Sandboxes, pod.Sandbox{ID: "old", Running: true, Addresses: []netip.Addr{card}, HostPorts: []pod.HostPort{dns}})
	for _, test := range []struct {
		name     string
		observed pod.Observed
		want     string
	}{
		{"nothing", pod.Observed{}, ""},
		{"no ports", box(nil, v4), ""},
		{"no address yet", box([]pod.HostPort{web}), ""},
		{"has ended", stopped, ""},
		{"the newest counts", older, "TCP 0.0.0.0:8080 > 10.244.1.7:80"},
		{"one family", box([]pod.HostPort{web}, v4), "TCP 0.0.0.0:8080 > 10.244.1.7:80"},
		{"both", box([]pod.HostPort{web}, v4, v6), "TCP 0.0.0.0:8080 > 10.244.1.7:80, TCP [::]:8080 > [fd00::7]:80"},
		{"both, IPv4 is published", box([]pod.HostPort{on(netip.IPv6Unspecified())}, v4, v6), "TCP [::]:8080 > [fd00::7]:80"},
		{"IPv6 is not the pod's", box([]pod.HostPort{on(netip.IPv6Unspecified())}, v4), ""},
		{"both protocols", box([]pod.HostPort{web, dns}, v4), "TCP 0.0.0.0:8080 > 10.244.1.7:80, UDP 0.0.0.0:53 > 10.244.1.7:5353"},
		{"hostIP", box([]pod.HostPort{on(card)}, v4, v6), "TCP 10.1.0.11:8080 > 10.244.1.7:80"},
		{"hostIP of the other family", box([]pod.HostPort{on(card6)}, v4), "TCP [fd01::11]:8080 > 10.244.1.7:80"},
		{"twice", box([]pod.HostPort{web, {Port: 8080, Protocol: v1.ProtocolTCP, ContainerPort: 81}}, v4), "TCP 0.0.0.0:8080 > 10.244.1.7:80"},
		{"without sandboxes", pod.Observed{Containers: []pod.Container{
			{ID: "new", State: pod.Running, Addresses: []netip.Addr{v4}, HostPorts: []pod.HostPort{web}}, {ID: "old", State: pod.Exited, HostPorts: []pod.HostPort{dns}}}},
			"TCP 0.0.0.0:8080 > 10.244.1.7:80"},
	} {
		var got []string
		for _, r := range Routes("uid", test.observed) {
			got = append(got, fmt.Sprintf("%s %s > %s", r.Protocol, r.Front, r.Backends[0].Addr))
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s: %s; want %s", test.name, strings.Join(got, ", "), test.want)
		}
	}
}

// backend serves a Table except the ports that others hold, and checks that the Table is valid.
type backend struct {
	t  *testing.T
	mu sync.Mutex
	// taken are ports of other programs.
	taken  map[uint16]bool
	synced chan string
	fails  error
}

func (b *backend) Sync(_ context.Context, want *proxy.Table, _ []proxy.ServiceName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var serves []string
	var errs []error
	for _, r := range want.Routes {
		if len(want.Of(r.Service.ServiceName)) == 0 {
			b.t.Errorf("the Table is not sorted: %v", want.Routes)
		}
		if b.taken[r.Front.Port()] {
			errs = append(errs, &proxy.RouteError{Route: r, Err: errors.New("address already in use")})
			continue
		}
		serves = append(serves, fmt.Sprintf("%s>%s", r.Front, r.Backends[0].Addr))
	}
	b.synced <- strings.Join(serves, " ")
	return errors.Join(append(errs, b.fails)...)
}

func TestServe(t *testing.T) {
	b := &backend{t: t, taken: map[uint16]bool{9000: true}, synced: make(chan string, 10)}
	events, clock := make(chan string, 10), clocktest.NewFakeClock(time.Unix(1e9, 0))
	m := New(Config{Backend: b, Clock: clock, Event: func(namespace, name, _, kind, reason, message string) {
		events <- fmt.Sprintf("%s/%s %s %s %s", namespace, name, kind, reason, message)
	}})
	observed := func(name string, port uint16) pod.Observed {
		return pod.Observed{Namespace: "shop", Name: name, Sandboxes: []pod.Sandbox{{Running: true, Addresses: []netip.Addr{v4},
			HostPorts: []pod.HostPort{{Port: port, Protocol: v1.ProtocolTCP, ContainerPort: 80}}}}}
	}
	next := func(from chan string, want string) {
		t.Helper()
		select {
		case got := <-from:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nothing came, want %q", want)
		}
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- m.Run(ctx) }()
	next(b.synced, "")
	m.Serve("a", observed("web", 8080))
	next(b.synced, "0.0.0.0:8080>10.244.1.7:80")
	m.Serve("a", observed("web", 8080)) // nothing new
	m.Serve("b", observed("taken", 9000))
	next(b.synced, "0.0.0.0:8080>10.244.1.7:80")
	next(events, "shop/taken Warning HostPortNotServed hostPort 9000/TCP: address already in use")
	b.mu.Lock()
	clear(b.taken)
	b.mu.Unlock()
	for healed := false; !healed; { // Run sets its timer after it sends the Event, and nothing signals that
		clock.Step(retry)
		select {
		case got := <-b.synced:
			healed = got == "0.0.0.0:8080>10.244.1.7:80 0.0.0.0:9000>10.244.1.7:80"
		case <-time.After(10 * time.Millisecond):
		}
	}
	next(events, "shop/taken Normal HostPortServed All hostPorts of the pod are served now")
	m.Serve("a", pod.Observed{})
	next(b.synced, "0.0.0.0:9000>10.244.1.7:80")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestIdle: without hostPorts nothing is compared, because the host's addresses do not matter then; what failed is repeated.
func TestIdle(t *testing.T) {
	b := &backend{t: t, synced: make(chan string, 10)}
	m := New(Config{Backend: b, Clock: clocktest.NewFakeClock(time.Unix(1e9, 0)), Event: func(_, _, _, _, _, _ string) {}})
	one := pod.Observed{Sandboxes: []pod.Sandbox{{Running: true, Addresses: []netip.Addr{v4}, HostPorts: []pod.HostPort{{Port: 80, Protocol: v1.ProtocolTCP, ContainerPort: 80}}}}}
	for _, step := range []struct {
		serves pod.Observed
		fails  error
		want   int // calls of the backend in two rounds
	}{
		{pod.Observed{}, nil, 1}, // what a former agent left
		{pod.Observed{}, nil, 0},
		{one, nil, 2},
		{pod.Observed{}, errors.New("busy"), 2},
		{pod.Observed{}, nil, 1},
	} {
		m.Serve("a", step.serves)
		b.fails = step.fails
		for range 2 {
			m.sync(t.Context())
		}
		if got := len(b.synced); got != step.want {
			t.Errorf("%+v: %d", step, got)
		}
		for len(b.synced) > 0 {
			<-b.synced
		}
	}
}

// TestOnePort: if two pods want one port, the first one has it until it ends, whatever their names. Each Event is on its own pod. A Table
// never has a front twice.
func TestOnePort(t *testing.T) {
	b := &backend{t: t, synced: make(chan string, 10)}
	events := make(chan string, 10)
	m := New(Config{Backend: b, Clock: clocktest.NewFakeClock(time.Unix(1e9, 0)), Event: func(namespace, name, _, kind, reason, message string) {
		events <- fmt.Sprintf("%s/%s %s %s %s", namespace, name, kind, reason, message)
	}})
	wants := func(name string, address netip.Addr, ports ...uint16) pod.Observed {
		box := pod.Sandbox{Running: true, Addresses: []netip.Addr{address}}
		for _, port := range ports {
			box.HostPorts = append(box.HostPorts, pod.HostPort{Port: port, Protocol: v1.ProtocolTCP, ContainerPort: 80})
		}
		return pod.Observed{Namespace: "shop", Name: name, Sandboxes: []pod.Sandbox{box}}
	}
	m.Serve("z", wants("first", v4, 8080))
	m.Serve("a", wants("second", netip.MustParseAddr("10.244.1.8"), 8080, 9090))
	if m.sync(t.Context()) {
		t.Error("a port that two pods want is served for both")
	}
	if got, want := <-b.synced, "0.0.0.0:9090>10.244.1.8:80 0.0.0.0:8080>10.244.1.7:80"; got != want {
		t.Errorf("serves %s, want %s", got, want)
	}
	if got, want := <-events, "shop/second Warning HostPortNotServed hostPort 8080/TCP: pod shop/first has it"; got != want {
		t.Errorf("event %q, want %q", got, want)
	}
	m.Serve("z", pod.Observed{})
	if !m.sync(t.Context()) {
		t.Error("the port is free, and the second pod does not have it")
	}
	if got, want := <-b.synced, "0.0.0.0:8080>10.244.1.8:80 0.0.0.0:9090>10.244.1.8:80"; got != want {
		t.Errorf("serves %s, want %s", got, want)
	}
	if got, want := <-events, "shop/second Normal HostPortServed All hostPorts of the pod are served now"; got != want {
		t.Errorf("event %q, want %q", got, want)
	}
}
