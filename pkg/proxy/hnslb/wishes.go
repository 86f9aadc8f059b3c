package hnslb

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
)

// wishes are what the Services of a Table need from HNS, kept so that the cost of a change depends only on the changed
// Services.
type wishes struct {
	network   *segment
	at        map[front]*wish
	byService map[proxy.ServiceName][]front
	needed    map[netip.Addr]need
}

// need is one of our endpoints with the number of its users.
type need struct {
	endpoint hns.Endpoint
	users    int
}

func newWishes(network *segment) wishes {
	return wishes{network: network, at: map[front]*wish{}, byService: map[proxy.ServiceName][]front{}, needed: map[netip.Addr]need{}}
}

// difference is what to check after a change.
type difference struct {
	fronts map[front]struct{}
	addrs  map[netip.Addr]struct{} // newly needed, or no longer
	errs   []error                 // of Routes that HNS cannot serve
}

// change updates the wishes of the changed Services. A front may move from one of them to another.
func (c *wishes) change(want *proxy.Table, changed []proxy.ServiceName) difference {
	d := difference{fronts: map[front]struct{}{}, addrs: map[netip.Addr]struct{}{}}
	for _, name := range changed {
		for _, key := range c.byService[name] {
			if w := c.at[key]; w != nil && w.route.Service.ServiceName == name {
				c.use(&d, w, -1)
				delete(c.at, key)
			}
			d.fronts[key] = struct{}{}
		}
		delete(c.byService, name)
	}
	for _, name := range changed {
		list, errs := c.network.wishes(want.Of(name))
		d.errs = append(d.errs, errs...)
		for _, w := range list {
			key := frontOf(&w.lb)
			d.fronts[key] = struct{}{}
			if before := c.at[key]; before != nil {
				c.use(&d, before, -1)
			}
			c.use(&d, w, 1)
			c.at[key] = w
			c.byService[name] = append(c.byService[name], key)
		}
	}
	return d
}

// use adds by to the number of users of a wish's endpoints.
func (c *wishes) use(d *difference, w *wish, by int) {
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
