// Package portproxy is the back end of the service proxy that uses the Windows service IP Helper to relay TCP
// connections, with the port proxy rules that administrators otherwise set manually. Rules work even while no proxy
// runs.
//
//	Table --rules that should be, difference to those listed--> one script --> Netsh
//
// A rule leads to one endpoint, so this back end serves only the Routes for which Serves is true. The host's rules
// include other programs' rules, and netsh has no field for a comment. So each of our rules has a second rule, a mark
// (mark.go), which is added before it and removed after it.
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

// Netsh runs lines as one script and returns the output; a failing line does not stop the others.
type Netsh interface {
	Script(ctx context.Context, lines []string) (output string, err error)
}

// Addresses makes the addresses of Services local to this host, which IP Helper needs to listen on them.
type Addresses interface {
	// Set gives the host the addresses in want (sorted) and removes all others that earlier calls added. added are
	// those that the host lacked; it is valid even with an error.
	Set(ctx context.Context, want []netip.Addr) (added []netip.Addr, err error)
	// Host lists the host's own addresses.
	Host() ([]netip.Addr, error)
}

// Config is the configuration of a Backend.
type Config struct {
	Netsh     Netsh
	Addresses Addresses
	// NodePorts limits the host's addresses that serve node ports; empty: all of them.
	NodePorts []netip.Prefix
	// NoFirewall leaves Windows Firewall unchanged.
	NoFirewall bool
}

// Serves reports whether a rule can serve a Route: TCP, one endpoint, no source ranges.
func Serves(r *proxy.Route) bool {
	return r.Protocol == v1.ProtocolTCP && len(r.Targets()) == 1 && len(r.Sources) == 0 && len(r.Near) == 0
}

// Backend implements proxy.Backend. Use it from one goroutine.
type Backend struct {
	cfg Config

	wants     map[netip.AddrPort]proxy.Route // those that rules can serve
	byService map[proxy.ServiceName][]netip.AddrPort
	host      []netip.Addr
	held      []netip.Addr // last passed to Addresses; nil: unknown

	// State of netsh as last listed; known: it is valid.
	known bool
	rules map[netip.AddrPort]netsh.Rule
	marks map[netip.AddrPort]netsh.Rule // by the listener that they mark; marks of no rule by their own listener
	made  map[netip.AddrPort]bool       // rules that this run changed and that have no mark
	added map[netip.Addr]bool           // addresses that may have been added after their rules

	open   string // the firewall's rules as last written
	opened bool   // and confirmed
	said   bool   // logged that they were not accepted
}

// New returns a Backend that has not looked at the host yet.
func New(cfg Config) *Backend {
	return &Backend{cfg: cfg, wants: map[netip.AddrPort]proxy.Route{}, byService: map[proxy.ServiceName][]netip.AddrPort{},
		made: map[netip.AddrPort]bool{}, added: map[netip.Addr]bool{}}
}

// Sync implements proxy.Backend: at most one listing, for a full comparison, and one script.
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
	if !whole && b.blocked(rules) { // the other program's rule may be gone
		if err := b.write(ctx, nil); err != nil {
			return err
		}
	}
	lines := b.difference(rules, whole)
	if err := b.hold(ctx, whole, lines); err != nil {
		return err
	}
	lines = append(b.again(), lines...)
	if len(lines) > 0 {
		if err := b.write(ctx, lines); err != nil {
			return err
		}
		clear(b.added)
		if err := b.hold(ctx, false, nil); err != nil {
			return err
		}
	}
	return errors.Join(append(errs, b.faults(rules, dirty)...)...)
}

// list reads the state of the host.
func (b *Backend) list(ctx context.Context) error {
	b.known = false
	host, err := b.cfg.Addresses.Host()
	if err != nil {
		return err
	}
	b.host = host
	return b.write(ctx, nil)
}

// write runs lines and reads the resulting state. It trusts the listing whatever netsh's exit code: what failed is
// missing there.
func (b *Backend) write(ctx context.Context, lines []string) error {
	b.known = false
	output, failed := b.cfg.Netsh.Script(ctx, append(slices.Clone(lines), netsh.Dump))
	list, err := netsh.ParseDump(output)
	if err != nil {
		b.opened = false // it is unknown what was done
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

// ours reports whether we may change the rule at a listener.
func (b *Backend) ours(listen netip.AddrPort) bool {
	return b.marks[listen].Listen.IsValid() || b.made[listen]
}

// foreign reports whether another program's rule is at a listener.
func (b *Backend) foreign(listen netip.AddrPort) bool {
	return b.rules[listen].Listen.IsValid() && !b.ours(listen)
}

// blocked reports whether other programs' rules are in the place of ours.
func (b *Backend) blocked(rules map[netip.AddrPort]netsh.Rule) bool {
	for listen, want := range rules {
		if want.Listen.IsValid() && b.foreign(listen) {
			return true
		}
	}
	return false
}

// names returns the Services of the Table and those that are served now.
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

// take updates the Routes of the changed Services. It returns the fronts to compare, and an error for each Route that
// no rule can serve. A front may move from one Service to another.
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

// listeners returns where a front listens: a node port on all of the host's addresses, or on the allowed ones.
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

// wanted returns the rule that each listener of the fronts should have; the zero Rule: none.
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

// difference returns the script that brings listeners to their rules, sorted by listener. With whole, it also removes
// our rules that no Route needs, left from a previous run.
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

// change returns the lines for one listener that is ours or free.
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

// again returns the lines that replace rules whose address was added after them, for example after a reboot. No source
// says that IP Helper opens a listener when its address appears; users of such rules set them again
// (shayne/go-wsl2-host#55).
func (b *Backend) again() (lines []string) {
	for _, listen := range slices.SortedFunc(maps.Keys(b.rules), netip.AddrPort.Compare) {
		if r := b.rules[listen]; b.added[listen.Addr()] && b.marks[listen].Listen.IsValid() {
			lines = append(lines, r.Delete(), r.Add())
			b.made[listen] = true
		}
	}
	return lines
}

// hold passes the addresses that the fronts need to Addresses; before a script (lines) also those on which rules still
// listen.
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
	added, err := b.cfg.Addresses.Set(ctx, want)
	for _, addr := range added {
		b.added[addr] = true
	}
	if err != nil {
		b.known = false
		return err
	}
	b.held = append([]netip.Addr{}, want...)
	return nil
}

// faults returns which fronts are not served, and what was not removed.
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
	for listen, want := range rules { // rules that should be gone
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
