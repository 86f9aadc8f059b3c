// Package packets is the back end of the service proxy for SCTP on Linux, beside the relay: rules of the packet filter
// lead to an endpoint. The kernel needs no SCTP for it, and this program opens no socket.
//
//	Table, Facts --Plan--> iptables.Set --Keeper--> iptables-save, difference, iptables-restore
//	       endpoints that are gone --Forget--> the kernel's table of connections
//
// Plan is pure. What the host knows is behind an interface. Rules and connections outlive this program, and the next one
// adopts them.
package packets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/proxy"
)

// Host is what the rules need of this host besides its packet filter.
type Host interface {
	// Link names the interface that leads to an address; lo for this host's own.
	Link(addr netip.Addr) (string, error)
	// Forget deletes the SCTP connections of a family for which stale is true from the kernel's table. With only, it looks
	// only at those with these bits in their mark.
	Forget(four bool, only uint32, stale func(Flow) bool) (deleted int, err error)
}

// Flow is one connection in the kernel's table.
type Flow struct {
	Mark uint32
	To   netip.AddrPort // where the client sent its first packet
	From netip.AddrPort // where the answers come from
}

// Config is the configuration of a Balancer.
type Config struct {
	Run  command.Runner
	Host Host
	// Addresses lists the host's own addresses.
	Addresses interface{ Host() ([]netip.Addr, error) }
	// NodePorts limits the host's addresses that serve node ports; empty: all, but never loopback and link-local ones.
	NodePorts []netip.Prefix
}

// Balancer implements proxy.Backend for the Routes that are Served. Use it from one goroutine.
type Balancer struct {
	cfg      Config
	routes   map[proxy.ServiceName][]proxy.Route // wanted
	facts    Facts
	families [2]*family
}

// family is the state of IPv4 or IPv6.
type family struct {
	four    bool
	keeper  *iptables.Keeper
	applied map[netip.AddrPort]proxy.Route // what the rules serve
	failed  bool                           // the rules do not match the Routes
	forget  int                            // connections to look at
	logged  map[string]string              // the last problem, by kind, which is logged once
}

// What to look at in the kernel's table of connections.
const (
	nothing = iota
	ours    // connections of ours: a front or an endpoint is gone
	all     // also those from before the rules: a front has come
)

// New returns a Balancer that has not changed the host.
func New(cfg Config) *Balancer {
	b := &Balancer{cfg: cfg, routes: map[proxy.ServiceName][]proxy.Route{}}
	for i, tool := range []string{"iptables", "ip6tables"} {
		b.families[i] = &family{four: i == 0, keeper: iptables.NewKeeper(cfg.Run, tool, prefix, "nat", "filter"),
			applied: map[netip.AddrPort]proxy.Route{}, logged: map[string]string{}}
	}
	return b
}

// Sync implements proxy.Backend. A change costs as much as there are fronts of protocol SCTP, and writes only the chains
// that differ.
func (b *Balancer) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	whole := changed == nil
	dirty := b.take(want, changed)
	if !whole && !dirty && !b.families[0].failed && !b.families[1].failed {
		return nil
	}
	var errs []error
	if err := b.look(want, whole); err != nil {
		errs = append(errs, err)
	}
	routes := b.sorted()
	for _, f := range b.families {
		errs = append(errs, b.apply(ctx, f, routes, whole)...)
	}
	return errors.Join(errs...)
}

// Remove removes all rules and connections of this and former proxies.
func (b *Balancer) Remove(ctx context.Context) error {
	var errs []error
	for _, f := range b.families {
		if _, err := f.keeper.Set(ctx, iptables.Set{}, true); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove the rules for SCTP: %w", err))
			continue
		}
		if _, err := b.cfg.Host.Forget(f.four, ownBit, func(Flow) bool { return true }); err != nil {
			klog.InfoS("Cannot end SCTP associations through removed rules; they end when their clients are silent", "err", err)
		}
	}
	return errors.Join(errs...)
}

// take records the Routes of the changed Services (nil: of all) and reports whether one differs.
func (b *Balancer) take(want *proxy.Table, changed []proxy.ServiceName) (dirty bool) {
	if changed == nil {
		clear(b.routes)
		for i := range want.Routes {
			if r := &want.Routes[i]; Served(r) {
				b.routes[r.Service.ServiceName] = append(b.routes[r.Service.ServiceName], *r)
			}
		}
		return true
	}
	for _, name := range changed {
		var next []proxy.Route // copies, because the Table changes in place
		for _, r := range want.Of(name) {
			if Served(&r) {
				next = append(next, r)
			}
		}
		if slices.EqualFunc(b.routes[name], next, func(x, y proxy.Route) bool { return x.Equal(&y) }) {
			continue
		}
		dirty = true
		if delete(b.routes, name); len(next) > 0 {
			b.routes[name] = next
		}
	}
	return dirty
}

// sorted returns all wanted Routes by front, which is the order of the rules.
func (b *Balancer) sorted() []proxy.Route {
	out := slices.Concat(slices.Collect(maps.Values(b.routes))...)
	slices.SortFunc(out, func(x, y proxy.Route) int { return x.Front.Compare(y.Front) })
	return out
}

// look reads what the rules need of this host. Links that are known are read again only with whole.
func (b *Balancer) look(want *proxy.Table, whole bool) error {
	if len(b.routes) == 0 {
		b.facts = Facts{}
		return nil
	}
	before := b.facts.Links
	b.facts.Pods, b.facts.Links = slices.Clone(want.PodRanges), map[netip.Addr]string{}
	for _, list := range b.routes {
		for _, r := range list {
			for _, e := range slices.Concat(r.Backends, r.Near) {
				addr := e.Addr.Addr()
				if _, ok := b.facts.Links[addr]; ok {
					continue
				}
				link, known := before[addr]
				if whole || !known {
					link, _ = b.cfg.Host.Link(addr) // without a route there is no way for packets either
				}
				b.facts.Links[addr] = link
			}
		}
	}
	host, err := b.cfg.Addresses.Host()
	if err != nil {
		return err // the addresses read last stay
	}
	b.facts.Nodes = nil
	for _, addr := range host {
		if !addr.IsLoopback() && !addr.IsLinkLocalUnicast() && (len(b.cfg.NodePorts) == 0 || slices.ContainsFunc(b.cfg.NodePorts, func(p netip.Prefix) bool { return p.Contains(addr) })) {
			b.facts.Nodes = append(b.facts.Nodes, addr.WithZone(""))
		}
	}
	slices.SortFunc(b.facts.Nodes, netip.Addr.Compare)
	b.facts.Nodes = slices.Compact(b.facts.Nodes)
	return nil
}

// apply brings the rules of one family to the Routes, and then its connections.
func (b *Balancer) apply(ctx context.Context, f *family, routes []proxy.Route, whole bool) (errs []error) {
	want := map[netip.AddrPort]proxy.Route{}
	for _, r := range routes {
		if r.Front.Addr().Is4() == f.four {
			want[r.Front] = r
		}
	}
	wished := len(want)
	written, err := f.keeper.Set(ctx, Plan(routes, b.facts, f.four), whole || f.failed)
	if refusal := (*command.ExitError)(nil); errors.As(err, &refusal) {
		// Affinity needs a part of the kernel that the rest does not.
		without := slices.DeleteFunc(slices.Clone(routes), func(r proxy.Route) bool { return r.Affinity > 0 })
		if len(without) < len(routes) {
			if again, second := f.keeper.Set(ctx, Plan(without, b.facts, f.four), true); second == nil {
				for key, r := range want {
					if r.Affinity > 0 {
						delete(want, key)
						errs = append(errs, &proxy.RouteError{Route: r, Err: oneLine("cannot keep clients at their endpoint (sessionAffinity ClientIP)", err)})
					}
				}
				written, err = again, nil
			}
		}
	}
	f.failed = err != nil || len(want) < wished
	if err != nil {
		return append(errs, f.failure(want, err)...)
	}
	f.logged["rules"] = ""
	if written {
		klog.InfoS("Wrote packet filter rules for SCTP", "family", f.name(), "fronts", len(want))
	}
	f.compare(want)
	if written && len(want) == 0 { // also what a former proxy left
		f.forget = max(f.forget, ours)
	}
	b.forget(f)
	return errs
}

func (f *family) name() string { return map[bool]string{true: "IPv4", false: "IPv6"}[f.four] }

// failure says which Routes are not served because the rules could not be written.
func (f *family) failure(want map[netip.AddrPort]proxy.Route, err error) (errs []error) {
	for key, r := range want {
		if applied, ok := f.applied[key]; !ok || !applied.Equal(&r) {
			errs = append(errs, &proxy.RouteError{Route: r, Err: oneLine("SCTP needs the packet filter", err)})
		}
	}
	switch {
	case len(errs) > 0:
	case f.keeper.Holds(): // something is to be removed, or may have changed
		errs = append(errs, oneLine("cannot bring the rules for SCTP up to date", err))
	default: // a host that cannot list its rules serves everything else
		f.log("rules", "Cannot see whether a former proxy has left rules for SCTP; looking again with the next full comparison", err)
		f.failed = false
	}
	return errs
}

// oneLine keeps an error, such as that of a program, on one line.
func oneLine(what string, err error) error {
	return &lineError{what + ": " + strings.Join(strings.Fields(err.Error()), " "), err}
}

type lineError struct {
	text string
	err  error
}

func (e *lineError) Error() string { return e.text }
func (e *lineError) Unwrap() error { return e.err }

func (f *family) log(kind, message string, err error) {
	if text := err.Error(); f.logged[kind] != text {
		f.logged[kind] = text
		klog.InfoS(message, "family", f.name(), "err", err)
	}
}

// compare records what the rules serve now, and which connections this may have ended.
func (f *family) compare(want map[netip.AddrPort]proxy.Route) {
	for key, r := range want {
		if before, ok := f.applied[key]; !ok || len(before.Backends)+len(before.Near) == 0 && len(r.Backends)+len(r.Near) > 0 {
			f.forget = all
		}
	}
	for key, before := range f.applied {
		r := want[key]
		if slices.ContainsFunc(slices.Concat(before.Backends, before.Near), func(e proxy.Endpoint) bool { return !leads(&r, e.Addr) }) {
			f.forget = max(f.forget, ours)
		}
	}
	f.applied = want
}

// leads reports whether an endpoint is a Route's, for new clients or for those that it has.
func leads(r *proxy.Route, to netip.AddrPort) bool {
	is := func(e proxy.Endpoint) bool { return e.Addr == to }
	return slices.ContainsFunc(r.Backends, is) || slices.ContainsFunc(r.Near, is)
}

// forget ends connections that no rule would make now. What fails is tried again with the next full comparison, at the
// latest.
func (b *Balancer) forget(f *family) {
	if f.forget == nothing {
		return
	}
	only := uint32(0)
	if f.forget == ours {
		only = ownBit
	}
	deleted, err := b.cfg.Host.Forget(f.four, only, func(flow Flow) bool { return f.stale(flow, b.facts.Nodes) })
	if err != nil {
		f.log("flows", "Cannot end SCTP associations with endpoints that are gone; trying again", err)
		return
	}
	if f.forget, f.logged["flows"] = nothing, ""; deleted > 0 {
		klog.InfoS("Ended SCTP associations with endpoints that are gone", "family", f.name(), "associations", deleted)
	}
}

// stale reports whether no rule would lead a connection where it is.
func (f *family) stale(flow Flow, nodes []netip.Addr) bool {
	r, ok := f.front(flow.To, nodes)
	if flow.Mark&ownBit != 0 {
		return !ok || !leads(&r, flow.From)
	}
	return ok && flow.From == flow.To && len(r.Backends)+len(r.Near) > 0
}

// front finds the front at which a packet arrived.
func (f *family) front(at netip.AddrPort, nodes []netip.Addr) (proxy.Route, bool) {
	r, ok := f.applied[at]
	if !ok && slices.Contains(nodes, at.Addr()) {
		unspecified := netip.IPv6Unspecified()
		if f.four {
			unspecified = netip.IPv4Unspecified()
		}
		r, ok = f.applied[netip.AddrPortFrom(unspecified, at.Port())]
	}
	return r, ok
}
