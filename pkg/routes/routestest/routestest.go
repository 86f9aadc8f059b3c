// Package routestest is a test double of a host's routing table: routes.RoutingTable in memory, which validates as a kernel does.
package routestest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/pkg/routes"
	"github.com/winkube/winkube/pkg/wake"
)

// Table is a routes.RoutingTable: that of a host with connected networks.
type Table struct {
	mu       sync.Mutex
	links    []netip.Prefix // addresses of the host with their network's length
	ours     []routes.Route
	foreign  []routes.Route
	tunnels  map[string]map[netip.Addr]routes.Peer // by device and Inner
	watchers []wake.Signal
	fail     error
	writes   int
	lists    int
}

// NewTable returns the table of a host with interfaces that have the addresses links (192.168.0.5/24).
func NewTable(links ...netip.Prefix) *Table {
	return &Table{links: links, tunnels: map[string]map[netip.Addr]routes.Peer{}}
}

// Tunnel creates a tunnel device without entries, as the kubelet does. An existing one loses its entries and routes.
func (t *Table) Tunnel(device string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tunnels[device] = map[netip.Addr]routes.Peer{}
	t.ours = slices.DeleteFunc(t.ours, func(r routes.Route) bool { return r.Device == device })
	t.tell()
}

func (t *Table) tell() {
	for _, c := range t.watchers {
		c.Send()
	}
}

// List implements routes.RoutingTable.
func (t *Table) List(context.Context) (routes.Host, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lists++
	if t.fail != nil {
		return routes.Host{}, t.fail
	}
	h := routes.Host{Ours: slices.Clone(t.ours), Foreign: slices.Clone(t.foreign)}
	for i := range h.Ours {
		h.Ours[i].Node, h.Ours[i].Peer = "", netip.Addr{}
	}
	for _, entries := range t.tunnels {
		for _, p := range entries {
			p.Node = ""
			h.Peers = append(h.Peers, p)
		}
	}
	for _, l := range t.links {
		h.Addrs, h.Networks = append(h.Addrs, l.Addr()), append(h.Networks, l)
		h.Foreign = append(h.Foreign, routes.Route{Dst: l.Masked()})
	}
	return h, nil
}

// Change implements routes.RoutingTable.
func (t *Table) Change(_ context.Context, d routes.Diff) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, r := range d.Remove {
		t.writes++
		if i := t.find(r.Dst); i >= 0 {
			t.ours = slices.Delete(t.ours, i, i+1)
		}
	}
	for _, p := range d.RemovePeers {
		t.writes++
		delete(t.tunnels[p.Device], p.Inner)
	}
	for _, p := range d.SetPeers {
		if t.tunnels[p.Device] == nil || !p.Inner.IsValid() || !p.Public.IsValid() {
			errs = append(errs, fmt.Errorf("cannot set %s: no such device", p))
			continue
		}
		t.writes++
		t.tunnels[p.Device][p.Inner] = p
	}
	for _, r := range d.Replace {
		i := t.find(r.Old.Dst)
		if i < 0 || r.Old.Dst != r.New.Dst {
			errs = append(errs, fmt.Errorf("cannot replace route %s by %s: no such route", r.Old, r.New))
			continue
		}
		if err := t.valid(r.New); err != nil {
			errs = append(errs, err)
			continue
		}
		t.writes++
		t.ours[i] = r.New
	}
	for _, r := range d.Add {
		err := t.valid(r)
		if t.find(r.Dst) >= 0 || slices.ContainsFunc(t.foreign, func(o routes.Route) bool { return o.Dst == r.Dst }) {
			err = fmt.Errorf("cannot add route %s: file exists", r)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t.writes++
		t.ours = append(t.ours, r)
	}
	slices.SortFunc(t.ours, func(a, b routes.Route) int { return a.Dst.Compare(b.Dst) })
	return errors.Join(errs...)
}

func (t *Table) find(dst netip.Prefix) int {
	return slices.IndexFunc(t.ours, func(r routes.Route) bool { return r.Dst == dst })
}

func (t *Table) valid(r routes.Route) error {
	if r.Dst != r.Dst.Masked() || !r.Dst.IsValid() {
		return fmt.Errorf("cannot add route %s: invalid prefix", r)
	}
	if r.Src.IsValid() && !slices.ContainsFunc(t.links, func(l netip.Prefix) bool { return l.Addr() == r.Src }) {
		return fmt.Errorf("cannot add route %s: invalid source", r)
	}
	if r.Device != "" {
		if _, ok := t.tunnels[r.Device][r.Via]; !ok {
			return fmt.Errorf("cannot add route %s: no neighbour %s in the tunnel", r, r.Via)
		}
		return nil
	}
	for _, l := range t.links {
		if l.Masked().Contains(r.Peer) && l.Addr() != r.Via {
			return nil
		}
	}
	return fmt.Errorf("cannot add route %s: network is unreachable", r)
}

// Changes implements routes.RoutingTable.
func (t *Table) Changes(ctx context.Context) (<-chan struct{}, error) {
	c := wake.New()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watchers = append(t.watchers, c)
	return c, nil
}

// Lose deletes the route to dst as another program would. With told, watchers get a hint.
func (t *Table) Lose(dst netip.Prefix, told bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ours = slices.DeleteFunc(t.ours, func(r routes.Route) bool { return r.Dst == dst })
	if told {
		t.tell()
	}
}

// Plant adds a route of another program.
func (t *Table) Plant(r routes.Route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.foreign = append(t.foreign, r)
}

// Uproot removes all routes of other programs.
func (t *Table) Uproot() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.foreign = nil
}

// Break makes List fail with err until Break(nil).
func (t *Table) Break(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail = err
}

// Writes returns the number of changes so far.
func (t *Table) Writes() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.writes
}

// Lists returns how often the table was listed.
func (t *Table) Lists() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lists
}

// String prints the table as `ip route` does, our routes with our mark.
func (t *Table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, r := range t.ours {
		fmt.Fprintf(&b, "%s proto %d\n", r, routes.Protocol)
	}
	for _, r := range t.foreign {
		fmt.Fprintf(&b, "%s via %s proto boot\n", r.Dst, r.Via)
	}
	for _, device := range slices.Sorted(maps.Keys(t.tunnels)) {
		for _, inner := range slices.SortedFunc(maps.Keys(t.tunnels[device]), netip.Addr.Compare) {
			fmt.Fprintf(&b, "%s\n", t.tunnels[device][inner])
		}
	}
	return b.String()
}
