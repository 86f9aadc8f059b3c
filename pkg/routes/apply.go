package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/winkube/winkube/pkg/vxlan"
)

// Host is the state of the host that RoutingTable.List returns.
type Host struct {
	Ours []Route // routes with our mark; Peer and Node unknown
	// Foreign are other programs' routes in a place that ours could take: same table, and same metric if that decides.
	// A zero Via is a directly connected network.
	Foreign []Route
	Addrs   []netip.Addr // this host's addresses that a route may use as Src; empty: routes have no source here
	// Networks are directly connected networks, each with this host's address in it if known (10.1.0.11/24).
	Networks []netip.Prefix
	// Peers are the entries of our tunnel devices. A neighbour entry without a forwarding entry has no Public; a
	// forwarding entry without a neighbour entry has no Inner.
	Peers []Peer
	// TunnelErr is why Peers, and routes into a tunnel, are unknown; nil: they are known.
	TunnelErr error
}

// Diff is a set of changes to the host. Each list is sorted by destination.
type Diff struct {
	Remove      []Route
	RemovePeers []Peer // with an invalid Inner or Public that entry stays
	SetPeers    []Peer
	Replace     []Replacement
	Add         []Route
}

// Replacement replaces one of our routes with another to the same destination.
type Replacement struct{ Old, New Route }

// Empty reports whether there is nothing to change.
func (d Diff) Empty() bool {
	return len(d.Remove)+len(d.RemovePeers)+len(d.SetPeers)+len(d.Replace)+len(d.Add) == 0
}

// Conflict says that another program's route is in the place of ours.
type Conflict struct {
	Route Route // ours
	Found Route
}

// Error names both routes and what to do.
func (c *Conflict) Error() string {
	return fmt.Sprintf("cannot add route %s to node %s: %s is there and was not written by this program; remove it", c.Route, c.Route.Node, described(c.Found))
}

// RoutingTable is this program's view of the host's routing table. Our routes carry a mark (Linux: route protocol
// Protocol; Windows: metric Protocol), so that they are found again after a restart and no other route is ever changed.
type RoutingTable interface {
	// List reads the table once.
	List(ctx context.Context) (Host, error)
	// Change applies d in the order of its fields; a replacement leaves no gap. Routes that cannot be changed are
	// errors in the joined result; the others are changed. Removing a missing route is not an error. Other programs'
	// routes are never overwritten.
	Change(ctx context.Context, d Diff) error
	// Changes returns hints that routes or interfaces changed. One pending hint covers many changes. The channel may be
	// closed when ctx ends or the host stops sending hints.
	Changes(ctx context.Context) (<-chan struct{}, error)
}

// Protocol is our mark: the route protocol on Linux (`ip route show proto 157`; unassigned in rtnetlink.h), the metric
// on Windows, whose route protocols are fixed.
const Protocol = 157

// errUnlisted says that the host's routes are unknown.
var errUnlisted = errors.New("cannot list routes")

// Apply makes our routes in t equal to want: it lists once, compares and changes what differs. Applying the same State
// twice changes nothing; an empty State removes all our routes. Errors of single routes are joined, and the rest is
// applied.
func Apply(ctx context.Context, t RoutingTable, want State) (Diff, error) {
	host, err := t.List(ctx)
	if err != nil {
		return Diff{}, fmt.Errorf("%w: %w", errUnlisted, err)
	}
	return bring(ctx, t, host, want)
}

// bring changes t, whose listing is host, to want.
func bring(ctx context.Context, t RoutingTable, host Host, want State) (Diff, error) {
	d, errs := compare(host, want)
	if !d.Empty() {
		errs = append(errs, t.Change(ctx, d))
	}
	return d, errors.Join(errs...)
}

// compare returns the changes that bring host to want.
func compare(host Host, want State) (d Diff, errs []error) {
	if host.TunnelErr != nil { // unknown, so leave tunnels unchanged
		if len(want.Peers) > 0 {
			errs = append(errs, host.TunnelErr)
		}
		want = State{Routes: slices.DeleteFunc(slices.Clone(want.Routes), func(r Route) bool { return r.Device != "" })}
	}
	have := make(map[netip.Prefix]*Route, len(host.Ours))
	for i := range host.Ours {
		r := &host.Ours[i]
		if have[r.Dst] != nil {
			d.Remove = append(d.Remove, *r)
			continue
		}
		have[r.Dst] = r
	}
	foreign := map[netip.Prefix]Route{}
	for _, r := range host.Foreign {
		foreign[r.Dst] = r
	}
	d.RemovePeers, d.SetPeers = comparePeers(host.Peers, want.Peers)
	for _, w := range want.Routes {
		if !slices.Contains(host.Addrs, w.Src) {
			w.Src = netip.Addr{}
		}
		h := have[w.Dst]
		delete(have, w.Dst)
		f, theirs := foreign[w.Dst]
		switch {
		case h != nil && h.Via == w.Via && h.Src == w.Src && h.Device == w.Device:
		case h != nil:
			d.Replace = append(d.Replace, Replacement{Old: *h, New: w})
		case theirs && f.Via == w.Via && f.Device == w.Device: // someone added the same route manually
		case theirs:
			errs = append(errs, &Conflict{Route: w, Found: f})
		default:
			d.Add = append(d.Add, w)
		}
	}
	for _, r := range have {
		d.Remove = append(d.Remove, *r)
	}
	slices.SortFunc(d.Remove, func(a, b Route) int { return comparePrefixes(a.Dst, b.Dst) })
	return d, errs
}

// comparePeers returns the changes to a tunnel's entries.
func comparePeers(have, want []Peer) (remove, set []Peer) {
	wanted, macs := make(map[netip.Addr]int, len(want)), make(map[vxlan.MAC]bool, len(want)) // wanted: indexes in want
	for i := range want {
		wanted[want[i].Inner], macs[want[i].MAC] = i, true
	}
	right := make([]bool, len(want))
	for _, h := range have {
		i, ok := wanted[h.Inner]
		if ok {
			h.Node = want[i].Node
		}
		if ok && h == want[i] {
			right[i] = true
			continue
		}
		if ok { // will be overwritten
			h.Inner = netip.Addr{}
		}
		if macs[h.MAC] { // now belongs to another Peer
			h.Public = netip.Addr{}
		}
		if h.Inner.IsValid() || h.Public.IsValid() {
			remove = append(remove, h)
		}
	}
	for i, w := range want {
		if !right[i] {
			set = append(set, w)
		}
	}
	slices.SortFunc(remove, func(a, b Peer) int { return a.Inner.Compare(b.Inner) })
	return remove, set
}

func described(r Route) string {
	if !r.Via.IsValid() {
		return fmt.Sprintf("the directly connected %s", r.Dst)
	}
	return fmt.Sprintf("a route %s via %s", r.Dst, r.Via)
}

// before returns what the host had of a State: the next hop for each destination.
func (h Host) before() (s State) {
	public := make(map[netip.Addr]netip.Addr, len(h.Peers))
	for _, p := range h.Peers {
		if p.Inner.IsValid() {
			public[p.Inner] = p.Public
		}
	}
	for _, r := range h.Ours {
		if r.Peer = r.Via; r.Device != "" {
			r.Peer = public[r.Dst.Addr()]
		}
		s.Routes = append(s.Routes, r)
	}
	s.Peers = slices.Clone(h.Peers)
	return s
}

// network reports whether p is a network or route that a pod range could overlap.
func network(p netip.Prefix) bool {
	a := p.Addr()
	return p.IsValid() && p.Bits() > 0 && !p.IsSingleIP() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}
