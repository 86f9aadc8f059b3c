// Package hnslb is the back end of the service proxy that lets Windows itself forward: HNS load balancers in the virtual switch.
//
//	Table --> what HNS should have --difference to what it has--> hns.Client, one call each
//
// What HNS has is listed once per Sync of everything, network, endpoints, load balancers, and kept for those of single services, which look at
// nothing else than what these have and had. An HNS that does not answer is unknown: nothing is concluded from it, and the next Sync lists again.
package hnslb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
)

// Config is what a Balancer needs.
type Config struct {
	Client  hns.Client
	Network string // the HNS network of the pods
	DSR     bool   // direct server return for cluster IPs
	// Of overlay networks only: the address from which this node asks (invalid: hns.SourceVIP of the network's range), and what says the node's own
	// with the hardware address behind it. Both move to another adapter when HNS makes the network, so that they are asked for with each list; the
	// zero Addr: not known at the moment.
	SourceVIP netip.Addr
	Node      func() (addr netip.Addr, mac string)
}

// segment is the network of the pods, and the place of this node in it.
type segment struct {
	hns.Network
	dsr       bool
	sourceVIP netip.Addr // of an overlay, as the following
	nodeAddr  netip.Addr
	nodeMAC   string
}

// segmentOf says what the configuration is on a network that HNS has.
func segmentOf(cfg *Config, network hns.Network) segment {
	s := segment{Network: network, dsr: cfg.DSR, sourceVIP: cfg.SourceVIP}
	if !network.Overlay {
		return s
	}
	if !s.sourceVIP.IsValid() && network.Subnet.IsValid() {
		s.sourceVIP = hns.SourceVIP(network.Subnet)
	}
	if cfg.Node != nil {
		s.nodeAddr, s.nodeMAC = cfg.Node()
	}
	return s
}

// complete says what an overlay needs and has not.
func (s *segment) complete() error {
	if s.Overlay && (!s.sourceVIP.IsValid() || !s.nodeAddr.IsValid() || s.nodeMAC == "") {
		return fmt.Errorf("HNS network %q is an overlay: want a source VIP (have %s) and the node's address with its hardware address (have %s %q)",
			s.Name, s.sourceVIP, s.nodeAddr, s.nodeMAC)
	}
	return nil
}

// Balancer implements proxy.Backend.
type Balancer struct {
	cfg Config

	// What HNS has, as last listed and changed since; known: that it can be relied on.
	known     bool
	network   segment
	endpoints map[netip.Addr]hns.Endpoint
	balancers map[front]hns.LoadBalancer
	stray     []hns.LoadBalancer // second ones at a front
	wishes    wishes             // what it should have
}

// New returns a Balancer that has not asked HNS for anything yet.
func New(cfg Config) *Balancer { return &Balancer{cfg: cfg} }

// Sync implements proxy.Backend. It is not safe for concurrent use. What it costs grows with the changed Services, unless everything is compared.
func (b *Balancer) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	whole := changed == nil || !b.known || b.moved(ctx)
	if whole {
		if err := b.list(ctx); err != nil {
			return err
		}
		b.wishes = newWishes(&b.network)
		changed = servicesOf(want)
	}
	b.known = false // until all is done: a half-done change is listed again
	d := b.wishes.change(want, changed)
	if whole {
		for key := range b.balancers {
			d.fronts[key] = struct{}{}
		}
		for addr := range b.endpoints {
			d.addrs[addr] = struct{}{}
		}
	}
	if err := b.network.complete(); err != nil && len(b.wishes.needed) > 0 {
		return err
	}
	errs, err := b.apply(ctx, &d)
	if err != nil {
		return err
	}
	b.known = len(errs) == 0
	return errors.Join(append(d.errs, errs...)...)
}

// moved says whether an overlay knows other hosts by now: an endpoint is made with the address of the host that has it, which HNS does not change.
func (b *Balancer) moved(ctx context.Context) bool {
	if !b.network.Overlay {
		return false
	}
	now, err := b.cfg.Client.Network(ctx, b.cfg.Network)
	return err != nil || now.ID != b.network.ID || !slices.Equal(now.Remote, b.network.Remote)
}

// servicesOf are the Services of a Table, which is sorted by them.
func servicesOf(t *proxy.Table) (names []proxy.ServiceName) {
	for i := range t.Routes {
		names = append(names, t.Routes[i].Service.ServiceName)
	}
	return slices.Compact(names)
}

// list asks HNS what it has.
func (b *Balancer) list(ctx context.Context) error {
	b.known = false
	network, err := b.cfg.Client.Network(ctx, b.cfg.Network)
	if err != nil {
		return fmt.Errorf("cannot find HNS network %q: %w", b.cfg.Network, err)
	}
	endpoints, err := b.cfg.Client.Endpoints(ctx)
	if err != nil {
		return fmt.Errorf("cannot list HNS endpoints: %w", err)
	}
	balancers, err := b.cfg.Client.LoadBalancers(ctx)
	if err != nil {
		return fmt.Errorf("cannot list HNS load balancers: %w", err)
	}
	b.network, b.endpoints, b.balancers, b.stray = segmentOf(&b.cfg, network), map[netip.Addr]hns.Endpoint{}, map[front]hns.LoadBalancer{}, nil
	of := map[string]string{} // endpoint -> network
	for _, e := range endpoints {
		of[e.ID] = e.Network
		if e.Network != network.ID {
			continue
		}
		for _, addr := range e.Addrs {
			if other, ok := b.endpoints[addr]; !ok || other.Remote { // HNS of 2019 and 2022 may have a remote one beside the local one
				b.endpoints[addr] = e
			}
		}
	}
	for _, lb := range balancers {
		slices.Sort(lb.Endpoints)
		others := slices.ContainsFunc(lb.Endpoints, func(id string) bool { return of[id] != "" && of[id] != network.ID })
		_, second := b.balancers[frontOf(&lb)]
		switch {
		case others: // not ours
		case second:
			b.stray = append(b.stray, lb)
		default: // also one whose endpoints are all gone: it leads nowhere, and stands in the way of the next at its front
			b.balancers[frontOf(&lb)] = lb
		}
	}
	return nil
}

// apply makes what is missing, changes what differs, removes what is too much; an error of HNS as a whole ends it.
func (b *Balancer) apply(ctx context.Context, d *difference) (errs []error, err error) {
	failed, err := b.createEndpoints(ctx, d)
	if err != nil {
		return nil, err
	}
	for _, key := range d.sortedFronts() {
		w := b.wishes.at[key]
		if w == nil {
			continue
		}
		if err := b.serve(ctx, key, w, failed); err != nil {
			if errors.Is(err, hns.ErrDown) {
				return nil, err
			}
			errs = append(errs, &proxy.RouteError{Route: w.route, Err: err})
		}
	}
	for key := range d.fronts {
		lb, ok := b.balancers[key]
		if !ok || b.wishes.at[key] != nil {
			continue
		}
		if err := b.cfg.Client.DeleteLoadBalancer(ctx, lb.ID); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove HNS load balancer %s: %w", lb.ID, err))
			continue
		}
		delete(b.balancers, key)
	}
	for _, lb := range b.stray {
		if err := b.cfg.Client.DeleteLoadBalancer(ctx, lb.ID); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove HNS load balancer %s: %w", lb.ID, err))
		}
	}
	b.stray = nil
	return append(errs, b.deleteEndpoints(ctx, d)...), nil
}

// createEndpoints makes the endpoints that are not there. It returns the errors of single ones by address.
func (b *Balancer) createEndpoints(ctx context.Context, d *difference) (map[netip.Addr]error, error) {
	failed := map[netip.Addr]error{}
	for addr := range d.addrs {
		n, needed := b.wishes.needed[addr]
		have, ok := b.endpoints[addr]
		if !needed || ok && !b.network.elsewhere(&have, &n.endpoint) {
			continue
		}
		if ok { // its load balancers get the new one below
			if err := b.cfg.Client.DeleteEndpoint(ctx, have.ID); err != nil {
				failed[addr] = fmt.Errorf("cannot remove HNS endpoint %s, which is on another host now: %w", addr, err)
				continue
			}
			delete(b.endpoints, addr)
		}
		e := n.endpoint
		id, err := b.cfg.Client.CreateEndpoint(ctx, b.network.Network, e)
		switch {
		case errors.Is(err, hns.ErrDown):
			return nil, err
		case err != nil:
			failed[addr] = fmt.Errorf("cannot make HNS endpoint %s: %w", addr, err)
			continue
		}
		e.ID = id
		b.endpoints[addr] = e
	}
	return failed, nil
}

// serve makes the load balancer of one front what its wish says. Endpoints that HNS does not have are left out, and told.
func (b *Balancer) serve(ctx context.Context, key front, w *wish, failed map[netip.Addr]error) error {
	lb := w.lb
	var missing error
	for _, target := range w.targets {
		addr := target.Addr.Addr()
		e, ok := b.endpoints[addr]
		switch {
		case ok:
			lb.Endpoints = append(lb.Endpoints, e.ID)
		case failed[addr] != nil:
			missing = failed[addr]
		default:
			missing = fmt.Errorf("HNS network %q has no endpoint %s of this node", b.network.Name, addr)
		}
	}
	slices.Sort(lb.Endpoints)
	have, ok := b.balancers[key]
	var err error
	switch {
	case len(lb.Endpoints) == 0:
		return missing // what was there before goes on: nothing better is known
	case !ok:
		lb.ID, err = b.cfg.Client.CreateLoadBalancer(ctx, lb)
	case equal(&have, &lb):
		return missing
	default:
		lb.ID = have.ID
		lb.ID, err = b.cfg.Client.ReplaceLoadBalancer(ctx, lb)
	}
	if err != nil {
		delete(b.balancers, key)
		return err
	}
	b.balancers[key] = lb
	return missing
}

// deleteEndpoints removes those of ours that no front needs any more.
func (b *Balancer) deleteEndpoints(ctx context.Context, d *difference) (errs []error) {
	for addr := range d.addrs {
		e, ok := b.endpoints[addr]
		if _, needed := b.wishes.needed[addr]; !ok || needed || !b.network.ours(&e) {
			continue
		}
		if err := b.cfg.Client.DeleteEndpoint(ctx, e.ID); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove HNS endpoint %s: %w", addr, err))
			continue
		}
		delete(b.endpoints, addr)
	}
	return errs
}
