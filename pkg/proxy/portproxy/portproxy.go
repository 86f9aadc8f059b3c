// Package portproxy is the back end of the service proxy that lets the service IP Helper of Windows relay TCP connections, by the port proxy
// rules that administrators otherwise set manually. Rules go on while no proxy runs.
//
//	Table --rules that should be, difference to those listed--> one script --> Netsh
//
// A rule leads to one endpoint, so this back end serves what Serves says; the rest is another's. Rules are as many as the host has, others'
// among them, and netsh has no place for a comment. What is ours is therefore said by a second rule, a mark (mark.go), made before and removed
// after the one it is for.
package portproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/proxy"
)

// Netsh runs lines as one script and returns what was printed; a line that fails stops no other.
type Netsh interface {
	Script(ctx context.Context, lines []string) (output string, err error)
}

// Addresses makes the addresses of services local to this host, which IP Helper needs to listen on them.
type Addresses interface {
	// Set makes the host hold want (sorted), and of those that it was told before no others.
	Set(ctx context.Context, want []netip.Addr) error
	// Host lists the addresses that the host has anyway.
	Host() ([]netip.Addr, error)
}

// Config is what a Backend needs.
type Config struct {
	Netsh     Netsh
	Addresses Addresses
	// NodePorts limits the host's addresses on which node ports are served; empty: all of them.
	NodePorts []netip.Prefix
	// NoFirewall leaves it to others to let clients in through Windows Firewall.
	NoFirewall bool
}

// Serves says whether a rule can do what a Route says: TCP, one endpoint, for everybody.
func Serves(r *proxy.Route) bool {
	return r.Protocol == v1.ProtocolTCP && len(r.Targets()) == 1 && len(r.Sources) == 0
}

// Backend implements proxy.Backend. It is for one goroutine.
type Backend struct {
	cfg Config

	wants     map[netip.AddrPort]proxy.Route // those that it can serve
	byService map[proxy.ServiceName][]netip.AddrPort
	host      []netip.Addr
	held      []netip.Addr // last given to Addresses; nil: unknown

	// What netsh has, as last listed; known: that it can be relied on.
	known bool
	rules map[netip.AddrPort]netsh.Rule
	marks map[netip.AddrPort]netsh.Rule // by the listener that they mark; those that mark nothing by their own
	made  map[netip.AddrPort]bool       // rules that this run has touched and that have lost, or not got, their mark

	open   string // the firewall's rules as last written
	opened bool   // and seen
	said   bool   // that they were not
}

// New returns a Backend that has not looked at the host yet.
func New(cfg Config) *Backend {
	return &Backend{cfg: cfg, wants: map[netip.AddrPort]proxy.Route{}, byService: map[proxy.ServiceName][]netip.AddrPort{},
		made: map[netip.AddrPort]bool{}}
}

// Sync implements proxy.Backend: at most one listing, when everything is compared, and one script.
func (b *Backend) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	whole := changed == nil || !b.known
	if whole {
		if err := b.list(ctx); err != nil {
			return err
		}
		changed = b.names(want)
	}
	dirty, errs := b.take(want, changed)
	if whole {
		for front := range b.wants {
			dirty[front] = true
		}
	}
	rules := b.wanted(dirty)
	if !whole && b.blocked(rules) { // it may be gone by now
		if err := b.write(ctx, nil); err != nil {
			return err
		}
	}
	lines := b.difference(rules, whole)
	if err := b.hold(ctx, whole, lines); err != nil {
		return err
	}
	if len(lines) > 0 {
		if err := b.write(ctx, lines); err != nil {
			return err
		}
		if err := b.hold(ctx, false, nil); err != nil {
			return err
		}
	}
	return errors.Join(append(errs, b.faults(rules, dirty)...)...)
}

// list asks the host what it has.
func (b *Backend) list(ctx context.Context) error {
	b.known = false
	host, err := b.cfg.Addresses.Host()
	if err != nil {
		return err
	}
	b.host = host
	return b.write(ctx, nil)
}

// write runs lines and reads what there is then. A listing is believed whatever netsh's exit code: what failed is missing in it.
func (b *Backend) write(ctx context.Context, lines []string) error {
	b.known = false
	output, failed := b.cfg.Netsh.Script(ctx, append(slices.Clone(lines), netsh.Dump))
	list, err := netsh.ParseDump(output)
	if err != nil {
		b.opened = false // who knows what was done
		return fmt.Errorf("cannot read port proxy rules: %w", errors.Join(err, failed))
	}
	b.look(lines, output)
	b.rules, b.marks = map[netip.AddrPort]netsh.Rule{}, map[netip.AddrPort]netsh.Rule{}
	for _, r := range list {
		if isMark(r) {
			b.marks[r.Listen] = r
		} else {
			b.rules[r.Listen] = r
		}
	}
	for listen := range b.rules {
		at := mark(listen).Listen
		if m, ok := b.marks[at]; ok {
			delete(b.marks, at)
			b.marks[listen] = m
			delete(b.made, listen)
		}
	}
	maps.DeleteFunc(b.made, func(listen netip.AddrPort, _ bool) bool { return !b.rules[listen].Listen.IsValid() })
	b.known = true
	return nil
}

// ours says whether the rule at a listener is one that we may change.
func (b *Backend) ours(listen netip.AddrPort) bool {
	return b.marks[listen].Listen.IsValid() || b.made[listen]
}

// foreign says whether another's rule is at a listener.
func (b *Backend) foreign(listen netip.AddrPort) bool {
	return b.rules[listen].Listen.IsValid() && !b.ours(listen)
}

// blocked says whether others' rules are where ours should be.
func (b *Backend) blocked(rules map[netip.AddrPort]netsh.Rule) bool {
	for listen, want := range rules {
		if want.Listen.IsValid() && b.foreign(listen) {
			return true
		}
	}
	return false
}

// names are the Services of the Table and those that are served now.
func (b *Backend) names(want *proxy.Table) []proxy.ServiceName {
	names := map[proxy.ServiceName]bool{}
	for i := range want.Routes {
		names[want.Routes[i].Service.ServiceName] = true
	}
	for name := range b.byService {
		names[name] = true
	}
	return slices.Collect(maps.Keys(names))
}

// take notes the Routes of the changed Services and returns the fronts to compare, and an error for each Route that no rule can serve. A front may
// pass from one Service to another.
func (b *Backend) take(want *proxy.Table, changed []proxy.ServiceName) (dirty map[netip.AddrPort]bool, errs []error) {
	dirty = map[netip.AddrPort]bool{}
	for _, name := range changed {
		for _, front := range b.byService[name] {
			dirty[front] = true
			if b.wants[front].Service.ServiceName == name {
				delete(b.wants, front)
			}
		}
		delete(b.byService, name)
	}
	for _, name := range changed {
		for _, r := range want.Of(name) {
			if !Serves(&r) {
				errs = append(errs, &proxy.RouteError{Route: r, Err: errors.New("a port proxy rule serves TCP, all clients, and one endpoint")})
				continue
			}
			dirty[r.Front] = true
			b.wants[r.Front] = r
			b.byService[name] = append(b.byService[name], r.Front)
		}
	}
	return dirty, errs
}

// listeners are where a front listens: a node port on all of the host's addresses, or on those that are allowed.
func (b *Backend) listeners(front netip.AddrPort) []netip.AddrPort {
	if !front.Addr().IsUnspecified() || len(b.cfg.NodePorts) == 0 {
		return []netip.AddrPort{front}
	}
	var out []netip.AddrPort
	for _, addr := range b.host {
		if addr.Is4() == front.Addr().Is4() && slices.ContainsFunc(b.cfg.NodePorts, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			out = append(out, netip.AddrPortFrom(addr, front.Port()))
		}
	}
	return out
}

// wanted is the rule that each listener of the fronts should have; the zero Rule: none.
func (b *Backend) wanted(fronts map[netip.AddrPort]bool) map[netip.AddrPort]netsh.Rule {
	out := map[netip.AddrPort]netsh.Rule{}
	for front := range fronts {
		for _, listen := range b.listeners(front) {
			if r, ok := b.wants[front]; ok {
				out[listen] = netsh.Rule{Listen: listen, Connect: r.Targets()[0].Addr}
			} else if _, ok := out[listen]; !ok { // a node port may share an address of the host with another front
				out[listen] = netsh.Rule{}
			}
		}
	}
	return out
}

// difference is the script that brings listeners to the rules that they should have, sorted by listener. With whole, our rules that no Route
// wants go too: what a former run left.
func (b *Backend) difference(rules map[netip.AddrPort]netsh.Rule, whole bool) []string {
	if whole {
		for _, at := range [][]netip.AddrPort{slices.Collect(maps.Keys(b.marks)), slices.Collect(maps.Keys(b.made))} {
			for _, listen := range at {
				if _, ok := rules[listen]; !ok {
					rules[listen] = netsh.Rule{}
				}
			}
		}
	}
	var lines []string
	for _, listen := range slices.SortedFunc(maps.Keys(rules), netip.AddrPort.Compare) {
		if !b.foreign(listen) { // see faults
			lines = append(lines, b.change(listen, rules[listen])...)
		}
	}
	if len(lines) == 0 && !whole {
		return nil
	}
	return append(lines, b.firewall()...)
}

// change are the lines for one listener that is ours or free.
func (b *Backend) change(listen netip.AddrPort, want netsh.Rule) (lines []string) {
	have, m := b.rules[listen], b.marks[listen]
	exists, marked := have.Listen.IsValid(), m.Listen.IsValid()
	if !want.Listen.IsValid() {
		if exists {
			lines = append(lines, have.Delete())
			b.made[listen] = true
		}
		if marked {
			lines = append(lines, m.Delete())
		}
		return lines
	}
	if !marked {
		lines = append(lines, mark(listen).Add())
	}
	if exists && have.Kind() == want.Kind() && have.Connect == want.Connect {
		return lines
	}
	if exists && have.Kind() != want.Kind() {
		lines = append(lines, have.Delete())
	}
	b.made[listen] = true
	return append(lines, want.Add())
}

// hold gives Addresses what the fronts need; before a script (lines) also what rules still listen on.
func (b *Backend) hold(ctx context.Context, whole bool, lines []string) error {
	need := map[netip.Addr]bool{}
	for front := range b.wants {
		need[front.Addr()] = true
	}
	if len(lines) > 0 {
		for _, addr := range b.held {
			need[addr] = true
		}
	}
	maps.DeleteFunc(need, func(addr netip.Addr, _ bool) bool {
		return addr.IsUnspecified() || addr.IsLoopback() || slices.Contains(b.host, addr)
	})
	want := slices.SortedFunc(maps.Keys(need), netip.Addr.Compare)
	if !whole && b.held != nil && slices.Equal(want, b.held) {
		return nil
	}
	b.held = nil
	if err := b.cfg.Addresses.Set(ctx, want); err != nil {
		b.known = false
		return err
	}
	b.held = append([]netip.Addr{}, want...)
	return nil
}

// faults says what of the fronts is not served, and what has not gone.
func (b *Backend) faults(rules map[netip.AddrPort]netsh.Rule, dirty map[netip.AddrPort]bool) (errs []error) {
	for _, front := range slices.SortedFunc(maps.Keys(dirty), netip.AddrPort.Compare) {
		r, ok := b.wants[front]
		if !ok {
			continue
		}
		if err := b.missing(front, rules); err != nil {
			errs = append(errs, &proxy.RouteError{Route: r, Err: err})
		}
	}
	for listen, want := range rules { // what should have gone
		if !want.Listen.IsValid() && b.ours(listen) {
			errs = append(errs, fmt.Errorf("cannot remove the port proxy rule at %s or its mark: netsh still lists it", listen))
		}
	}
	return errs
}

// missing says why a front is not served as it should be.
func (b *Backend) missing(front netip.AddrPort, rules map[netip.AddrPort]netsh.Rule) error {
	for _, listen := range b.listeners(front) {
		have, want := b.rules[listen], rules[listen]
		switch {
		case have.Connect != want.Connect && b.foreign(listen):
			return fmt.Errorf("a port proxy rule of another program listens at %s; \"netsh %s\" removes it", listen, have.Delete())
		case have.Connect != want.Connect:
			return fmt.Errorf("netsh did not accept the port proxy rule %s to %s", listen, want.Connect)
		case b.made[listen]:
			return fmt.Errorf("netsh did not accept the port proxy rule %s that marks %s as the proxy's", mark(listen).Listen, listen)
		}
	}
	return nil
}
