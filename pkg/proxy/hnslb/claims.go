package hnslb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
)

// claims are the wishes of a Table's Services, kept so that a change costs what the changed Services cost. At a front the first in the Table's
// order wins.
type claims struct {
	network   *segment
	at        map[front][]*wish // sorted
	byService map[proxy.ServiceName][]front
	needed    map[netip.Addr]need // by those that win
}

// need is an endpoint of ours, and how many ask for it.
type need struct {
	endpoint hns.Endpoint
	users    int
}

func newClaims(network *segment) claims {
	return claims{network: network, at: map[front][]*wish{}, byService: map[proxy.ServiceName][]front{}, needed: map[netip.Addr]need{}}
}

// difference is what to look at after a change.
type difference struct {
	fronts map[front]struct{}
	addrs  map[netip.Addr]struct{} // that are needed now, or not any more
	errs   []error                 // of Routes that HNS cannot serve
}

// winner is the wish that is served at a front, nil for none.
func (c *claims) winner(key front) *wish {
	if list := c.at[key]; len(list) > 0 {
		return list[0]
	}
	return nil
}

// change takes the wishes of the changed Services.
func (c *claims) change(want *proxy.Table, changed []proxy.ServiceName) difference {
	d := difference{fronts: map[front]struct{}{}, addrs: map[netip.Addr]struct{}{}}
	before := map[front]*wish{}
	touch := func(key front) {
		if _, ok := before[key]; !ok {
			before[key] = c.winner(key)
		}
	}
	for _, name := range changed {
		for _, key := range c.byService[name] {
			touch(key)
			c.remove(key, name)
		}
		delete(c.byService, name)
		list, errs := c.network.wishes(want.Of(name))
		d.errs = append(d.errs, errs...)
		for _, w := range list {
			key := frontOf(&w.lb)
			touch(key)
			c.insert(key, w)
			c.byService[name] = append(c.byService[name], key)
		}
	}
	for key, old := range before {
		d.fronts[key] = struct{}{}
		c.use(&d, old, -1)
		c.use(&d, c.winner(key), 1)
		for i, w := range c.at[key] {
			if i > 0 {
				d.errs = append(d.errs, &proxy.RouteError{Route: w.route, Err: fmt.Errorf("the front is that of %s", c.at[key][0].route.Service.ServiceName)})
			}
		}
	}
	return d
}

func (c *claims) insert(key front, w *wish) {
	list := c.at[key]
	i, _ := slices.BinarySearchFunc(list, w, func(have, w *wish) int {
		if byTable(have, w) > 0 {
			return 1
		}
		return -1 // behind its equals
	})
	c.at[key] = slices.Insert(list, i, w)
}

func (c *claims) remove(key front, name proxy.ServiceName) {
	c.at[key] = slices.DeleteFunc(c.at[key], func(w *wish) bool { return w.route.Service.ServiceName == name })
	if len(c.at[key]) == 0 {
		delete(c.at, key)
	}
}

// byTable compares wishes of one front as the Table has their Routes.
func byTable(a, b *wish) int {
	x, y := a.route.Service, b.route.Service
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Port, y.Port), cmp.Compare(a.route.Kind, b.route.Kind))
}

// use counts a wish that wins, or has won, among the users of the endpoints that it needs.
func (c *claims) use(d *difference, w *wish, by int) {
	if w == nil {
		return
	}
	for _, e := range c.network.endpointsFor(w) {
		addr := e.Addrs[0]
		d.addrs[addr] = struct{}{}
		n := c.needed[addr]
		if n.users += by; by > 0 {
			n.endpoint = e
		}
		if n.users > 0 {
			c.needed[addr] = n
		} else {
			delete(c.needed, addr)
		}
	}
}

func (d *difference) sortedFronts() []front {
	keys := make([]front, 0, len(d.fronts))
	for key := range d.fronts {
		keys = append(keys, key)
	}
	family := func(f front) int {
		if f.ipv6 {
			return 6
		}
		return 4
	}
	slices.SortFunc(keys, func(a, b front) int {
		return cmp.Or(a.vip.Compare(b.vip), cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.port, b.port), cmp.Compare(family(a), family(b)))
	})
	return keys
}
