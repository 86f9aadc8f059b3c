package podlink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/winkube/winkube/pkg/cni"
)

var errDead = errors.New("the program is dead")

// kernel is an in-memory Kernel. It dies after some changes, like a program in the middle of them.
type kernel struct {
	mu         sync.Mutex
	ports      map[string]Port
	index      int
	namespaces map[string]map[netip.Addr]bool // addresses in each, by path
	left       int                            // changes until it dies; negative: it stays alive
	inside     map[string]string              // ports' namespaces
}

func newKernel() *kernel {
	return &kernel{ports: map[string]Port{}, namespaces: map[string]map[netip.Addr]bool{}, left: -1, inside: map[string]string{}}
}

// alive counts a change.
func (k *kernel) alive() error {
	if k.left == 0 {
		return errDead
	}
	k.left--
	return nil
}

func (k *kernel) Ports() ([]Port, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left == 0 {
		return nil, errDead
	}
	return slices.Collect(maps.Values(k.ports)), nil
}

func (k *kernel) MakeBridge(Network) error { return nil }

func (k *kernel) RemoveBridge(string) error { return nil }

func (k *kernel) Do(steps []Step, _, path string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.namespaces[path] == nil {
		return fmt.Errorf("%w: %s", ErrGone, path)
	}
	for _, s := range steps {
		if err := k.alive(); err != nil {
			return err
		}
		p := k.ports[s.Port]
		switch s.Do {
		case MakePair:
			if p.Name != "" {
				return errors.New("file exists")
			}
			k.index++
			p = Port{Name: s.Port, Index: k.index, Bridge: s.Bridge, Up: true}
			k.inside[s.Port] = path
		case AddAddr:
			k.namespaces[path][s.Address.Addr()] = true
		case Configure:
			p.Hairpin = true
		case Finish:
			p.Alias = s.Alias
		}
		if s.Port != "" {
			k.ports[s.Port] = p
		}
	}
	return nil
}

func (k *kernel) Repair(n Network, r Repair) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.alive(); err != nil {
		return err
	}
	p, there := k.ports[r.Port]
	switch {
	case !there:
	case r.Remove:
		delete(k.ports, r.Port)
		clear(k.namespaces[k.inside[r.Port]])
	default:
		p.Up, p.Hairpin, p.Bridge = true, true, n.Bridge
		k.ports[r.Port] = p
	}
	return nil
}

func (k *kernel) Watch(context.Context, func(string)) error { return nil }

// end ends a container's processes, and with them its namespace.
func (k *kernel) end(netns string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.namespaces, netns)
	for port, path := range k.inside {
		if path == netns {
			delete(k.ports, port)
		}
	}
}

// attachment is that of the i-th container, which runs.
func (k *kernel) attachment(i int) cni.Attachment {
	a := cni.Attachment{ContainerID: fmt.Sprintf("%012x%052d", i, 0), Netns: fmt.Sprintf("/proc/%d/ns/net", i)}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.namespaces[a.Netns] == nil {
		k.namespaces[a.Netns] = map[netip.Addr]bool{}
	}
	return a
}

func started(t *testing.T, k *kernel, n Network, others Others) *Links {
	t.Helper()
	l := New(k)
	l.Use(n, others)
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

func added(t *testing.T, l *Links, a cni.Attachment) string {
	t.Helper()
	got, err := l.Add(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(got)
}

// TestKilledAnywhere: after a program dies between any two steps, the next one reaches the same state as if it had lived, and leaves nothing else.
func TestKilledAnywhere(t *testing.T) {
	n := networkOf("10.244.1.0/24", "fd00:1::/64")
	steps := len(Steps(n, Record{Container: container, Addrs: addrs("10.244.1.2", "fd00:1::2")}, nil))
	for dies := range steps + 1 {
		k := newKernel()
		before := started(t, k, n, Others{})
		added(t, before, k.attachment(1))
		k.left = dies
		_, err := before.Add(t.Context(), k.attachment(2))
		if (err != nil) != (dies < steps) {
			t.Fatalf("dies after %d of %d: %v", dies, steps, err)
		}
		k.left = -1
		after := started(t, k, n, Others{})
		for _, want := range []struct {
			i     int
			addrs string
		}{{1, "[10.244.1.2 fd00:1::2]"}, {2, "[10.244.1.3 fd00:1::3]"}} {
			if got := added(t, after, k.attachment(want.i)); got != want.addrs {
				t.Errorf("dies after %d: container %d has %s, want %s", dies, want.i, got, want.addrs)
			}
		}
		if len(k.ports) != 2 || len(Compare(n, slices.Collect(maps.Values(k.ports)))) > 0 {
			t.Errorf("dies after %d: ports are %v", dies, k.ports)
		}
	}
}

// TestAnyCourse: in any order of events, no two pods share an address, and the kernel's records match the containers.
func TestAnyCourse(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		k, n := newKernel(), networkOf("10.244.1.0/28", "fd00:1::/64")
		others := Others{Addrs: addrs("10.244.1.4", "fd00:1::3")}
		l, running := started(t, k, n, others), map[int]bool{}
		var course []string
		note := func(format string, args ...any) { course = append(course, fmt.Sprintf(format, args...)) }
		for range 40 {
			i := random.IntN(9)
			switch random.IntN(6) {
			case 0, 1:
				running[i] = true
				_, err := l.Add(t.Context(), k.attachment(i))
				note("add %d: %v", i, err)
			case 2:
				err := l.Del(t.Context(), k.attachment(i).ContainerID, "")
				note("del %d: %v", i, err)
			case 3:
				k.end(k.attachment(i).Netns)
				delete(running, i)
				note("end %d", i)
			case 4:
				k.left = random.IntN(14)
				_, err := l.Add(t.Context(), k.attachment(i))
				running[i] = true
				k.left = -1
				l = started(t, k, n, others)
				note("killed in add %d: %v", i, err)
			case 5:
				err := l.Load(t.Context())
				_, err2 := l.Repair(t.Context())
				note("compare: %v", errors.Join(err, err2))
			}
		}
		exists := map[string]bool{}
		for i := range running {
			exists[k.attachment(i).ContainerID] = true
		}
		if err := l.Load(t.Context()); err != nil { // the comparison that follows each change
			t.Fatal(err)
		}
		if _, err := l.Repair(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Collect(t.Context(), func(context.Context, []string) (map[string]bool, error) { return exists, nil }); err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Addr]string{}
		for _, p := range k.ports {
			r, done := ParseAlias(p.Alias)
			if !done || !exists[r.Container] {
				t.Errorf("seed %d: port %+v is left over", seed, p)
			}
			for _, a := range append(r.Addrs, others.Addrs...) {
				if other, is := seen[a]; is && !slices.Contains(others.Addrs, a) {
					t.Errorf("seed %d: %s and %s have %s", seed, other, r.Container, a)
				}
				seen[a] = r.Container
				if slices.Contains(r.Addrs, a) && slices.Contains(others.Addrs, a) {
					t.Errorf("seed %d: %s is another's", seed, a)
				}
			}
			if !slices.Equal(slices.SortedFunc(maps.Keys(k.namespaces[r.Netns]), netip.Addr.Compare), r.Addrs) {
				t.Errorf("seed %d: the namespace has %v, the record %v", seed, k.namespaces[r.Netns], r.Addrs)
			}
		}
		if len(l.Records()) != len(k.ports) {
			t.Errorf("seed %d: %d records, ports %v", seed, len(l.Records()), k.ports)
		}
		if t.Failed() {
			t.Fatal(strings.Join(course, "\n"))
		}
	}
}

func TestAddressesRest(t *testing.T) {
	k, n := newKernel(), networkOf("10.244.1.0/24")
	l := started(t, k, n, Others{})
	for i := range 3 {
		added(t, l, k.attachment(i))
	}
	if err := l.Del(t.Context(), k.attachment(2).ContainerID, ""); err != nil {
		t.Fatal(err)
	}
	if got := added(t, l, k.attachment(3)); got != "[10.244.1.5]" {
		t.Errorf("the address that has just been released is given again: %s", got)
	}
	if got := added(t, started(t, k, n, Others{}), k.attachment(4)); got != "[10.244.1.6]" {
		t.Errorf("the next program gives %s", got)
	}
}

// TestBesideTheEngine: an engine with a network on the same bridge assigns the lowest free address.
func TestBesideTheEngine(t *testing.T) {
	k, n := newKernel(), networkOf("10.244.1.0/24")
	l := started(t, k, n, Others{Gives: true, Addrs: addrs("10.244.1.2", "10.244.1.128")})
	if got := added(t, l, k.attachment(1)); got != "[10.244.1.129]" {
		t.Error(got)
	}
	l.Use(n, Others{})
	if got := added(t, l, k.attachment(2)); got != "[10.244.1.130]" {
		t.Error(got)
	}
}

func TestAttached(t *testing.T) {
	k, n := newKernel(), networkOf("10.244.1.0/24")
	a := k.attachment(1)
	k.left = 0
	l := New(k)
	if _, ok := l.Attached(a.ContainerID, a.Netns); !ok {
		t.Error("a kernel that does not answer has disconnected a container")
	}
	k.left = -1
	if _, ok := l.Attached(a.ContainerID, a.Netns); ok {
		t.Error("a container without a port is connected")
	}
	if _, err := l.Add(t.Context(), a); err == nil {
		t.Error("a container was connected without a bridge")
	}
	l.Use(n, Others{})
	first := added(t, l, a)
	if got, ok := l.Attached(a.ContainerID, a.Netns); !ok || fmt.Sprint(got) != first || l.MapsPorts(a.ContainerID) {
		t.Errorf("%v, %t", got, ok)
	}
	k.end(a.Netns) // it was restarted
	a.Netns = "/proc/99/ns/net"
	k.namespaces[a.Netns] = map[netip.Addr]bool{}
	if _, ok := l.Attached(a.ContainerID, a.Netns); ok {
		t.Error("another namespace of the container is connected")
	}
	if got := added(t, l, a); got == "[]" || len(k.ports) != 1 {
		t.Errorf("%s, %v", got, k.ports)
	}
}

// TestRestored: a port that others remove is recreated with the same addresses; one whose container has ended is not.
func TestRestored(t *testing.T) {
	k, n := newKernel(), networkOf("10.244.1.0/24")
	l := started(t, k, n, Others{})
	one, two := k.attachment(1), k.attachment(2)
	first := added(t, l, one)
	added(t, l, two)
	k.mu.Lock()
	delete(k.ports, PortName(one.ContainerID))
	k.mu.Unlock()
	k.end(two.Netns)
	if !l.Lost(PortName(one.ContainerID)) || l.Lost("wkp000000000000") {
		t.Error("a removed port of a container counts as lost, and no other")
	}
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, ok := l.Attached(one.ContainerID, one.Netns); !ok || fmt.Sprint(got) != first {
		t.Errorf("while it is repaired the pod has %v, %t", got, ok)
	}
	repaired, err := l.Repair(t.Context())
	if err != nil || len(repaired) != 1 || fmt.Sprint(repaired[0].Addrs) != first || len(k.ports) != 1 || len(l.Records()) != 1 {
		t.Errorf("%v, %v; ports are %v", repaired, err, k.ports)
	}
}

func TestConcurrentAdds(t *testing.T) {
	k, n := newKernel(), networkOf("10.244.1.0/24")
	l := started(t, k, n, Others{})
	var group sync.WaitGroup
	for i := range 40 {
		a := k.attachment(i)
		group.Go(func() {
			if _, err := l.Add(context.Background(), a); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if err := l.Load(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	seen := map[netip.Addr]bool{}
	for _, r := range l.Records() {
		seen[r.Addrs[0]] = true
	}
	if len(seen) != 40 || len(k.ports) != 40 {
		t.Errorf("40 pods have %d addresses and %d ports", len(seen), len(k.ports))
	}
}
