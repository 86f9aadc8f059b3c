package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Host is what Table.List sees of the host.
type Host struct {
	Ours []Route // routes that carry our mark; Peer and Node unknown
	// Foreign are routes of others that stand where one of ours would: same table, same metric where that decides. A zero Via is a
	// directly connected network.
	Foreign []Route
	Addrs   []netip.Addr // addresses of this host that a route may have as Src; empty: routes have no source here
}

// Diff is how the host must change. Each list is sorted by destination.
type Diff struct {
	Remove  []Route
	Replace []Replacement
	Add     []Route
}

// Replacement exchanges one route of ours for another to the same destination.
type Replacement struct{ Old, New Route }

// Empty says that there is nothing to do.
func (d Diff) Empty() bool { return len(d.Remove)+len(d.Replace)+len(d.Add) == 0 }

// Table is the host's routing table as far as it concerns us. Routes of ours carry a mark (Linux: route protocol Protocol; Windows:
// metric Protocol), so that they are found again after a restart and no other route is ever touched.
type Table interface {
	// List reads the table once.
	List(ctx context.Context) (Host, error)
	// Change does what d says: first removes, then replaces without a gap, then adds. A route that cannot be changed is an error in the
	// joined result; the others are done. Removing what is gone is no error. A route of another is never overwritten.
	Change(ctx context.Context, d Diff) error
	// Changes hints that routes or interfaces changed. One pending hint stands for many. It may be closed when ctx ends or the host stops telling.
	Changes(ctx context.Context) (<-chan struct{}, error)
}

// Protocol is our mark: the route protocol on Linux (`ip route show proto 157`; not assigned to anybody in rtnetlink.h), the metric on
// Windows, whose route protocols are fixed.
const Protocol = 157

// Apply makes the routes of ours in t those of want and nothing more: it lists once, compares and changes what differs. The same State
// twice changes nothing; an empty one removes every trace. Errors of single routes are joined, the rest is applied.
func Apply(ctx context.Context, t Table, want State) (Diff, error) {
	host, err := t.List(ctx)
	if err != nil {
		return Diff{}, fmt.Errorf("cannot list routes: %w", err)
	}
	d, errs := compare(host, want)
	if !d.Empty() {
		errs = append(errs, t.Change(ctx, d))
	}
	return d, errors.Join(errs...)
}

// compare decides how host must change to be as want says.
func compare(host Host, want State) (d Diff, errs []error) {
	have := map[netip.Prefix]Route{}
	for _, r := range host.Ours {
		if _, double := have[r.Dst]; double {
			d.Remove = append(d.Remove, r)
			continue
		}
		have[r.Dst] = r
	}
	foreign := map[netip.Prefix]Route{}
	for _, r := range host.Foreign {
		foreign[r.Dst] = r
	}
	for _, w := range want.Routes {
		if !slices.Contains(host.Addrs, w.Src) {
			w.Src = netip.Addr{}
		}
		h, ours := have[w.Dst]
		delete(have, w.Dst)
		f, theirs := foreign[w.Dst]
		switch {
		case ours && h.Via == w.Via && h.Src == w.Src:
		case ours:
			d.Replace = append(d.Replace, Replacement{Old: h, New: w})
		case theirs && f.Via == w.Via: // somebody wrote the same route by hand
		case theirs:
			errs = append(errs, fmt.Errorf("cannot add route %s to node %s: %s is there and was not written by this program; remove it", w, w.Node, described(f)))
		default:
			d.Add = append(d.Add, w)
		}
	}
	for _, r := range have {
		d.Remove = append(d.Remove, r)
	}
	slices.SortFunc(d.Remove, func(a, b Route) int { return comparePrefixes(a.Dst, b.Dst) })
	return d, errs
}

func described(r Route) string {
	if !r.Via.IsValid() {
		return fmt.Sprintf("the directly connected %s", r.Dst)
	}
	return fmt.Sprintf("a route %s via %s", r.Dst, r.Via)
}
