// Package addresses makes the addresses of Services local to this host, for the relay and other back ends that listen
// on them. It implements relay.Addresses.
//
//	relay.Local --> Linux: ranges by routes, single ports by rules, the rest on an interface; all of it guarded by nftables
//	            --> Windows: addresses of an interface, by IP Helper
package addresses

import "net/netip"

// OwnInterface is the dummy interface for service addresses if no other is named (Linux). It is created when needed and
// removed with the last address.
const OwnInterface = "winkube-svc"

// plan returns the difference between our addresses on the interface and those wanted.
func plan(have map[netip.Addr]bool, want []netip.Addr) (add, remove []netip.Addr) {
	wanted := make(map[netip.Addr]bool, len(want))
	for _, addr := range want {
		wanted[addr] = true
		if _, ok := have[addr]; !ok {
			add = append(add, addr)
		}
	}
	for addr, ours := range have {
		if ours && !wanted[addr] {
			remove = append(remove, addr)
		}
	}
	return add, remove
}
