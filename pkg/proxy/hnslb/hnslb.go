// Package hnslb is the back end of the service proxy that leaves forwarding to Windows: HNS load balancers in the
// virtual switch.
//
//	Table --> what HNS should have --difference to what it has--> hns.Client, one call each
//
// A full Sync lists the network, endpoints and load balancers in HNS once. The lists are kept for Syncs of single
// Services, which look only at the objects of those Services. If HNS does not respond, its state is unknown: nothing is
// derived from it, and the next Sync lists again.
package hnslb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/portblocks"
	"github.com/winkube/winkube/pkg/proxy"
)

// Config is the configuration of a Balancer.
type Config struct {
	Client  hns.Client
	Network string // the HNS network of the pods
	Build   int    // Windows build; features that its HNS lacks are not used; 0: unknown, treated as the newest
	DSR     bool   // direct server return for cluster IPs
	Overlay bool   // the network is an overlay: no other back end reaches its pods
	// Ports reads the dynamic ports of this host, from which HNS reserves some for load balancers without direct server
	// return; nil: not checked.
	Ports func(context.Context) (portblocks.Ports, error)
	// SourceVIP and Node are for overlay networks only: the source address of this node's connections (invalid:
	// hns.SourceVIP of the network's range), and a function that returns the node's address with its hardware address.
	// Both move to another adapter when HNS creates the network, so they are read with each list; the zero Addr:
	// currently unknown.
	SourceVIP netip.Addr
	Node      func() (addr netip.Addr, mac string)
}

// segment is the network of the pods, with this node's place in it.
type segment struct {
	hns.Network
	build     int
	dsr       bool
	sourceVIP netip.Addr // sourceVIP, nodeAddr and nodeMAC are for overlays
	nodeAddr  netip.Addr
	nodeMAC   string
}

// segmentOf applies the configuration to a network in HNS.
func segmentOf(cfg *Config, network hns.Network) segment {
	s := segment{Network: network, build: cfg.Build, dsr: cfg.DSR, sourceVIP: cfg.SourceVIP}
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

// complete reports what an overlay lacks; nil: nothing.
func (s *segment) complete() error {
	if s.Overlay && (!s.sourceVIP.IsValid() || !s.nodeAddr.IsValid() || s.nodeMAC == "") {
		return fmt.Errorf("HNS network %q is an overlay: want a source VIP (have %s) and the node's address with its hardware address (have %s %q)",
			s.Name, s.sourceVIP, s.nodeAddr, s.nodeMAC)
	}
	return nil
}

// Balancer implements proxy.Backend.
type Balancer struct {
	cfg     Config
	metrics metrics
	budget  *portblocks.Budget // of this Sync; nil: nothing needed ports yet

	// State of HNS as last listed and changed since; known: it is valid.
	known     bool
	network   segment
	kind      *hns.Network // for Serves: as last read, or empty where HNS did not answer; nil: to be read
	endpoints map[netip.Addr]hns.Endpoint
	balancers map[front]hns.LoadBalancer
	stray     []hns.LoadBalancer // duplicates at a front
	wishes    wishes             // what HNS should have
	echoes    map[hns.ID]*echo   // for load balancers that we created
}

// echo is what HNS reports of a load balancer that we created. HNS omits what it does not know, and returns the rest in
// its own form. Neither is a reason to create the load balancer again.
type echo struct {
	asked, answered hns.LoadBalancer
	heard           bool // answered is set: as first listed
}

// New returns a Balancer that has not called HNS yet.
func New(cfg Config) *Balancer {
	return &Balancer{cfg: cfg, echoes: map[hns.ID]*echo{}, metrics: newMetrics()}
}

// Serves reports whether a load balancer can serve a Route on the network that HNS has: other programs make overlays, too. It
// asks HNS if no Sync has.
func (b *Balancer) Serves(r *proxy.Route) bool {
	if b.cfg.Overlay || b.cfg.lacks(r) == nil {
		return b.cfg.serves(r)
	}
	if b.kind == nil { // an error: the next Sync reports it, too
		network, _ := b.cfg.Client.Network(context.Background(), b.cfg.Network)
		b.kind = &network
	}
	cfg := b.cfg
	cfg.Overlay = b.kind.Overlay
	return cfg.serves(r)
}

// Sync implements proxy.Backend. It is not safe for concurrent use. Its cost grows with the changed Services, except
// for a full comparison.
func (b *Balancer) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	whole := changed == nil || !b.known || b.moved(ctx)
	if whole {
		if err := b.list(ctx); err != nil {
			return err
		}
		b.wishes = newWishes(&b.network)
		changed = servicesOf(want)
	}
	b.known = false // until everything is done, so that the next Sync lists again after a partial change
	b.budget = nil
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
	if b.known = len(errs) == 0; whole {
		b.countReserving()
	}
	return errors.Join(append(d.errs, errs...)...)
}

// moved reports whether an overlay's remote subnets have changed: an endpoint has the address of its host, which HNS
// cannot change.
func (b *Balancer) moved(ctx context.Context) bool {
	if !b.network.Overlay {
		return false
	}
	now, err := b.cfg.Client.Network(ctx, b.cfg.Network)
	return err != nil || now.ID != b.network.ID || !slices.Equal(now.Remote, b.network.Remote)
}

// servicesOf returns the Services of a Table, which is sorted by them.
func servicesOf(t *proxy.Table) (names []proxy.ServiceName) {
	for i := range t.Routes {
		names = append(names, t.Routes[i].Service.ServiceName)
	}
	return slices.Compact(names)
}

// list reads the state of HNS.
func (b *Balancer) list(ctx context.Context) error {
	b.known, b.kind = false, nil
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
	b.kind = &network
	b.network, b.endpoints, b.balancers, b.stray = segmentOf(&b.cfg, network), map[netip.Addr]hns.Endpoint{}, map[front]hns.LoadBalancer{}, nil
	of := map[hns.ID]hns.ID{} // endpoint -> network
	for _, e := range endpoints {
		of[e.ID] = e.Network
		if e.Network != network.ID {
			continue
		}
		for _, addr := range e.Addrs {
			if other, ok := b.endpoints[addr]; !ok || other.Remote { // HNS of 2019 and 2022 may have a remote one in addition to the local one
				b.endpoints[addr] = e
			}
		}
	}
	echoes := b.echoes
	b.echoes = map[hns.ID]*echo{}
	for _, lb := range balancers {
		slices.SortFunc(lb.Endpoints, hns.ID.Compare)
		if e := echoes[lb.ID]; e != nil {
			lb = e.hear(lb)
			b.echoes[lb.ID] = e
		}
		others := slices.ContainsFunc(lb.Endpoints, func(id hns.ID) bool { return of[id] != (hns.ID{}) && of[id] != network.ID })
		_, second := b.balancers[frontOf(&lb)]
		switch {
		case others: // not ours
		case second:
			b.stray = append(b.stray, lb)
		default: // even without any endpoint left: it leads nowhere, and blocks the next one at its front
			b.balancers[frontOf(&lb)] = lb
		}
	}
	return nil
}

// hear interprets a load balancer in HNS' list: it returns the requested one as long as HNS lists it as at first.
func (e *echo) hear(lb hns.LoadBalancer) hns.LoadBalancer {
	if !e.heard && alike(&e.asked, &lb) {
		e.answered, e.heard = lb, true
	}
	if e.heard && equal(&e.answered, &lb) {
		return e.asked
	}
	return lb
}

// apply creates what is missing, changes what differs and removes the rest; an error of HNS as a whole stops it.
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
		delete(b.echoes, lb.ID)
	}
	for _, lb := range b.stray {
		if err := b.cfg.Client.DeleteLoadBalancer(ctx, lb.ID); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove HNS load balancer %s: %w", lb.ID, err))
		}
	}
	b.stray = nil
	return append(errs, b.deleteEndpoints(ctx, d)...), nil
}

// createEndpoints creates the missing endpoints. It returns the errors of single ones by address.
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

// serve brings the load balancer of one front to its wish. It omits endpoints that HNS lacks, and returns an error for
// them.
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
	slices.SortFunc(lb.Endpoints, hns.ID.Compare)
	have, ok := b.balancers[key]
	var err error
	switch {
	case len(lb.Endpoints) == 0:
		return missing // the existing load balancer stays: nothing better is known
	case !ok:
		if err := b.take(ctx, &lb); err != nil {
			return err
		}
		lb.ID, err = b.cfg.Client.CreateLoadBalancer(ctx, lb)
	case serves(&have, &lb):
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
	delete(b.echoes, have.ID)
	b.echoes[lb.ID] = &echo{asked: lb}
	return missing
}

// deleteEndpoints removes our endpoints that no front needs any longer.
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
