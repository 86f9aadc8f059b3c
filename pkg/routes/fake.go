package routes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/pkg/wake"
)

// Fake is a RoutingTable for tests: a host with connected networks whose routing table validates as a kernel's does.
type Fake struct {
	mu       sync.Mutex
	links    []netip.Prefix // addresses of the host with their network's length
	ours     []Route
	foreign  []Route
	tunnels  map[string]map[netip.Addr]Peer // by device and Inner
	watchers []wake.Signal
	fail     error
	writes   int
	lists    int
}

// NewFake returns a host with interfaces that have the addresses links (192.168.0.5/24).
func NewFake(links ...netip.Prefix) *Fake {
	return &Fake{links: links, tunnels: map[string]map[netip.Addr]Peer{}}
}

// Tunnel creates a tunnel device without entries, as the kubelet does. An existing one loses its entries and routes.
func (f *Fake) Tunnel(device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tunnels[device] = map[netip.Addr]Peer{}
	f.ours = slices.DeleteFunc(f.ours, func(r Route) bool { return r.Device == device })
	f.tell()
}

func (f *Fake) tell() {
	for _, c := range f.watchers {
		c.Send()
	}
}

// List implements RoutingTable.
func (f *Fake) List(context.Context) (Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	if f.fail != nil {
		return Host{}, f.fail
	}
	h := Host{Ours: slices.Clone(f.ours), Foreign: slices.Clone(f.foreign)}
	for i := range h.Ours {
		h.Ours[i].Node, h.Ours[i].Peer = "", netip.Addr{}
	}
	for _, entries := range f.tunnels {
		for _, p := range entries {
			p.Node = ""
			h.Peers = append(h.Peers, p)
		}
	}
	for _, l := range f.links {
		h.Addrs, h.Networks = append(h.Addrs, l.Addr()), append(h.Networks, l)
		h.Foreign = append(h.Foreign, Route{Dst: l.Masked()})
	}
	return h, nil
}

// Change implements RoutingTable.
func (f *Fake) Change(_ context.Context, d Diff) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, r := range d.Remove {
		f.writes++
		if i := f.find(r.Dst); i >= 0 {
			f.ours = slices.Delete(f.ours, i, i+1)
		}
	}
	for _, p := range d.RemovePeers {
		f.writes++
		delete(f.tunnels[p.Device], p.Inner)
	}
	for _, p := range d.SetPeers {
		if f.tunnels[p.Device] == nil || !p.Inner.IsValid() || !p.Public.IsValid() {
			errs = append(errs, fmt.Errorf("cannot set %s: no such device", p))
			continue
		}
		f.writes++
		f.tunnels[p.Device][p.Inner] = p
	}
	for _, r := range d.Replace {
		i := f.find(r.Old.Dst)
		if i < 0 || r.Old.Dst != r.New.Dst {
			errs = append(errs, fmt.Errorf("cannot replace route %s by %s: no such route", r.Old, r.New))
			continue
		}
		if err := f.valid(r.New); err != nil {
			errs = append(errs, err)
			continue
		}
		f.writes++
		f.ours[i] = r.New
	}
	for _, r := range d.Add {
		err := f.valid(r)
		if f.find(r.Dst) >= 0 || slices.ContainsFunc(f.foreign, func(o Route) bool { return o.Dst == r.Dst }) {
			err = fmt.Errorf("cannot add route %s: file exists", r)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.writes++
		f.ours = append(f.ours, r)
	}
	slices.SortFunc(f.ours, func(a, b Route) int { return comparePrefixes(a.Dst, b.Dst) })
	return errors.Join(errs...)
}

func (f *Fake) find(dst netip.Prefix) int {
	return slices.IndexFunc(f.ours, func(r Route) bool { return r.Dst == dst })
}

func (f *Fake) valid(r Route) error {
	if r.Dst != r.Dst.Masked() || !r.Dst.IsValid() {
		return fmt.Errorf("cannot add route %s: invalid prefix", r)
	}
	if r.Src.IsValid() && !slices.ContainsFunc(f.links, func(l netip.Prefix) bool { return l.Addr() == r.Src }) {
		return fmt.Errorf("cannot add route %s: invalid source", r)
	}
	if r.Device != "" {
		if _, ok := f.tunnels[r.Device][r.Via]; !ok {
			return fmt.Errorf("cannot add route %s: no neighbour %s in the tunnel", r, r.Via)
		}
		return nil
	}
	for _, l := range f.links {
		if l.Masked().Contains(r.Peer) && l.Addr() != r.Via {
			return nil
		}
	}
	return fmt.Errorf("cannot add route %s: network is unreachable", r)
}

// Changes implements RoutingTable.
func (f *Fake) Changes(ctx context.Context) (<-chan struct{}, error) {
	c := wake.New()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, c)
	return c, nil
}

// Lose deletes the route to dst as another program would. With told, watchers get a hint.
func (f *Fake) Lose(dst netip.Prefix, told bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ours = slices.DeleteFunc(f.ours, func(r Route) bool { return r.Dst == dst })
	if told {
		f.tell()
	}
}

// Plant adds a route of another program.
func (f *Fake) Plant(r Route) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.foreign = append(f.foreign, r)
}

// Uproot removes all routes of other programs.
func (f *Fake) Uproot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.foreign = nil
}

// Break makes List fail with err until Break(nil).
func (f *Fake) Break(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// Writes returns the number of changes so far.
func (f *Fake) Writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// Lists returns how often the table was listed.
func (f *Fake) Lists() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// String prints the table as `ip route` does, our routes with our mark.
func (f *Fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, r := range f.ours {
		fmt.Fprintf(&b, "%s proto %d\n", r, Protocol)
	}
	for _, r := range f.foreign {
		fmt.Fprintf(&b, "%s via %s proto boot\n", r.Dst, r.Via)
	}
	for _, device := range slices.Sorted(maps.Keys(f.tunnels)) {
		for _, inner := range slices.SortedFunc(maps.Keys(f.tunnels[device]), netip.Addr.Compare) {
			fmt.Fprintf(&b, "%s\n", f.tunnels[device][inner])
		}
	}
	return b.String()
}
