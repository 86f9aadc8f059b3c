package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/winkube/winkube/pkg/vxlan"
)

// Host is what RoutingTable.List sees of the host.
type Host struct {
	Ours []Route // routes that carry our mark; Peer and Node unknown
	// Foreign are routes of others that stand where one of ours would: same table, same metric where that decides. A zero Via is a
	// directly connected network.
	Foreign []Route
	Addrs   []netip.Addr // addresses of this host that a route may have as Src; empty: routes have no source here
	// Networks are those to which this host is directly connected, each with this host's address in it where that is known (10.1.0.11/24).
	Networks []netip.Prefix
	// Peers are the entries of our tunnel devices. A neighbour entry without its forwarding entry has no Public, one of the latter alone no
	// Inner.
	Peers []Peer
	// TunnelErr is why the Peers, and routes into a tunnel, are not known; nil: they are.
	TunnelErr error
}

// Diff is how the host must change. Each list is sorted by destination.
type Diff struct {
	Remove      []Route
	RemovePeers []Peer // an invalid Inner or Public: that entry stays
	SetPeers    []Peer
	Replace     []Replacement
	Add         []Route
}

// Replacement exchanges one route of ours for another to the same destination.
type Replacement struct{ Old, New Route }

// Empty says that there is nothing to do.
func (d Diff) Empty() bool {
	return len(d.Remove)+len(d.RemovePeers)+len(d.SetPeers)+len(d.Replace)+len(d.Add) == 0
}

// Conflict says that a route of another program stands where ours should.
type Conflict struct {
	Route Route // ours
	Found Route
}

// Error names both and what to do.
func (c *Conflict) Error() string {
	return fmt.Sprintf("cannot add route %s to node %s: %s is there and was not written by this program; remove it", c.Route, c.Route.Node, described(c.Found))
}

// RoutingTable is the host's routing table as far as it concerns us. Routes of ours carry a mark (Linux: route protocol Protocol; Windows:
// metric Protocol), so that they are found again after a restart and no other route is ever touched.
type RoutingTable interface {
	// List reads the table once.
	List(ctx context.Context) (Host, error)
	// Change does what d says in the order of its fields; a replacement leaves no gap. A route that cannot be changed is an error in the
	// joined result; the others are done. Removing what is gone is no error. A route of another is never overwritten.
	Change(ctx context.Context, d Diff) error
	// Changes hints that routes or interfaces changed. One pending hint stands for many. It may be closed when ctx ends or the host stops sending them.
	Changes(ctx context.Context) (<-chan struct{}, error)
}

// Protocol is our mark: the route protocol on Linux (`ip route show proto 157`; not assigned to anybody in rtnetlink.h), the metric on
// Windows, whose route protocols are fixed.
const Protocol = 157

// errUnlisted says that nothing is known of the routes on the host.
var errUnlisted = errors.New("cannot list routes")

// Apply makes the routes of ours in t those of want and nothing more: it lists once, compares and changes what differs. The same State
// twice changes nothing; an empty one removes every trace. Errors of single routes are joined, the rest is applied.
func Apply(ctx context.Context, t RoutingTable, want State) (Diff, error) {
	host, err := t.List(ctx)
	if err != nil {
		return Diff{}, fmt.Errorf("%w: %w", errUnlisted, err)
	}
	return bring(ctx, t, host, want)
}

// bring changes t, which was listed as host, to want.
func bring(ctx context.Context, t RoutingTable, host Host, want State) (Diff, error) {
	d, errs := compare(host, want)
	if !d.Empty() {
		errs = append(errs, t.Change(ctx, d))
	}
	return d, errors.Join(errs...)
}

// compare decides how host must change to be as want says.
func compare(host Host, want State) (d Diff, errs []error) {
	if host.TunnelErr != nil { // nothing is concluded from it
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
		case theirs && f.Via == w.Via && f.Device == w.Device: // the same route was added manually
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

// comparePeers decides how a tunnel's entries must change.
func comparePeers(have, want []Peer) (remove, set []Peer) {
	wanted, macs := make(map[netip.Addr]int, len(want)), make(map[vxlan.MAC]bool, len(want)) // the former: where in want
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
		if ok { // is overwritten
			h.Inner = netip.Addr{}
		}
		if macs[h.MAC] { // belongs to another Peer by now
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

// before is what host had of a State: who was led where.
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

// network says whether a host's network, or the way to it, is one that a range could take a piece of.
func network(p netip.Prefix) bool {
	a := p.Addr()
	return p.IsValid() && p.Bits() > 0 && !p.IsSingleIP() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}
