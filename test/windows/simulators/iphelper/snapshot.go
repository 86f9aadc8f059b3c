package iphelper

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Settings are an interface's settings for one family (MIB_IPINTERFACE_ROW). A new interface has none of them: Windows has used the strong host
// model since Vista (TechNet Magazine, The Cable Guy, September 2007).
type Settings struct {
	Forwarding, WeakSend, WeakReceive, NoDefaultRoutes bool
	Metric                                             uint32 // added to the metrics of its routes
}

func settingsOf(row []byte) Settings {
	return Settings{row[interfaceForwarding] != 0, row[interfaceWeakSend] != 0, row[interfaceWeakReceive] != 0, row[interfaceNoDefaults] != 0,
		le.Uint32(row[interfaceMetric:])}
}

// String lists the settings that differ from a new interface.
func (s Settings) String() string {
	var words []string
	for _, one := range []struct {
		on   bool
		word string
	}{{s.Forwarding, "forwarding true"}, {s.WeakSend, "weak-host-send"}, {s.WeakReceive, "weak-host-receive"}, {s.NoDefaultRoutes, "no-default-routes"}} {
		if one.on {
			words = append(words, one.word)
		}
	}
	return strings.Join(words, " ")
}

// Interface is a network adapter as the IP stack sees it.
type Interface struct {
	Name       string
	V4, V6     Settings
	Addresses  []netip.Prefix
	Skipped    map[netip.Addr]bool // addresses never used as source (SkipAsSource)
	Virtual    bool                // created by HNS
	sortingKey uint64
}

// Route is one route of the host.
type Route struct {
	Prefix    netip.Prefix
	Via       netip.Addr // unspecified means on-link
	Interface string
	Metric    uint32
}

// Snapshot returns the current IP stack: simulated adapters, and Wine's adapters that were in a table, with programs' changes. It excludes Linux's
// own routes and addresses.
func (h *Host) Snapshot() (interfaces []Interface, routes []Route) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.adapters {
		i := Interface{Name: a.name, Skipped: map[netip.Addr]bool{}, Virtual: a.own, sortingKey: a.luid,
			V4: settingsOf(h.interfaceRow(interfaceKey{familyIPv4, a.luid}, a)), V6: settingsOf(h.interfaceRow(interfaceKey{familyIPv6, a.luid}, a))}
		for key, row := range h.addresses {
			if key.luid == a.luid && row != nil {
				i.Addresses = append(i.Addresses, netip.PrefixFrom(key.addr, int(row[addressBits])))
				i.Skipped[key.addr] = row[addressSkip] != 0
			}
		}
		slices.SortFunc(i.Addresses, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		interfaces = append(interfaces, i)
	}
	slices.SortFunc(interfaces, func(a, b Interface) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.sortingKey, b.sortingKey))
	})
	for key, row := range h.routes {
		if a := h.find(key.luid, 0); row != nil && a != nil {
			routes = append(routes, Route{key.prefix, key.via, a.name, le.Uint32(row[routeMetric:])})
		}
	}
	slices.SortFunc(routes, func(a, b Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), a.Via.Compare(b.Via), strings.Compare(a.Interface, b.Interface))
	})
	return interfaces, routes
}

// Lead adds a route to an adapter, as CreateIpForwardEntry2 does. Tests on Linux use it.
func (h *Host) Lead(name string, p netip.Prefix, via netip.Addr, metric uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.adapters {
		if a.name != name {
			continue
		}
		row := make([]byte, routeSize)
		le.PutUint64(row[routeLUID:], a.luid)
		le.PutUint32(row[routeIndex:], a.index)
		putSockaddr(row[routePrefix:], p.Addr())
		row[routeBits] = byte(p.Bits())
		putSockaddr(row[routeNextHop:], via)
		le.PutUint32(row[routeMetric:], metric)
		key := keyOfRoute(row)
		h.routes[key] = row
		h.tellRoute(true, key)
		h.notify(kindRoute, added, row)
	}
}

// Assign adds an address to an adapter, as CreateUnicastIpAddressEntry does. Tests on Linux use it.
func (h *Host) Assign(name string, p netip.Prefix, skipAsSource bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.adapters {
		if a.name == name {
			row := make([]byte, addressSize)
			putSockaddr(row[addressAddr:], p.Addr())
			le.PutUint64(row[addressLUID:], a.luid)
			row[addressBits] = byte(p.Bits())
			if skipAsSource {
				row[addressSkip] = 1
			}
			h.putAddress(keyOfAddress(row), row)
		}
	}
}

// Change changes an adapter's settings for a family, as SetIpInterfaceEntry does. Tests on Linux use it.
func (h *Host) Change(name string, v6 bool, change func(*Settings)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	family := uint16(familyIPv4)
	if v6 {
		family = familyIPv6
	}
	for _, a := range h.adapters {
		if a.name != name {
			continue
		}
		key := interfaceKey{family, a.luid}
		row := slices.Clone(h.interfaceRow(key, a))
		s := settingsOf(row)
		change(&s)
		for offset, on := range map[int]bool{interfaceForwarding: s.Forwarding, interfaceWeakSend: s.WeakSend, interfaceWeakReceive: s.WeakReceive, interfaceNoDefaults: s.NoDefaultRoutes} {
			row[offset] = 0
			if on {
				row[offset] = 1
			}
		}
		le.PutUint32(row[interfaceMetric:], s.Metric)
		h.interfaces[key] = row
		h.notify(kindInterface, changedParameter, row)
	}
}
