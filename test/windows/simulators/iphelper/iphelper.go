// Package iphelper simulates what Wine's IP Helper API lacks or fakes: changes of routes, addresses and interface settings, and their
// notifications. Tables are the rows that Wine reads from Linux, with the changes made here.
//
//	winipcfg --> shim iphlpapi.dll --> Host.Call --> state, calls.Log
//
// Error codes and rules follow Microsoft's pages of the functions in netioapi.h, unless a rule cites another source. Nothing reaches
// Linux: OnAddress and OnRoute let a test mirror addresses and routes there.
package iphelper

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// Win32 errors.
const (
	errorInvalidParameter = 87
	errorNotFound         = 1168
	errorObjectExists     = 5010
)

// adapter is a network adapter of the host: a simulated one, or one of Wine's that was in a table.
type adapter struct {
	luid  uint64
	index uint32
	name  string
	own   bool
}

// Host is the simulated IP stack. It is safe for concurrent use.
type Host struct {
	// OnAddress receives the addresses that programs add and remove. It is called with the lock held; nil is allowed.
	OnAddress func(added bool, address netip.Prefix, adapter string)
	// OnRoute is the same for routes.
	OnRoute func(added bool, prefix netip.Prefix, via netip.Addr)
	// Hidden reports which of Wine's adapters a Windows host would not have, such as the bridges of a Linux engine. Nil is
	// allowed.
	Hidden func(name string) bool

	log *calls.Log

	mu          sync.Mutex
	adapters    []*adapter
	routes      map[routeKey][]byte // added or changed; nil means removed
	addresses   map[addressKey][]byte
	interfaces  map[interfaceKey][]byte // as programs set them
	realRoutes  map[routeKey]bool       // as Wine last reported them
	realAddrs   map[addressKey]bool
	subscribers map[*subscriber]bool
	reads       map[string]int // of whole tables, by function
}

// New returns a Host without changes.
func New(log *calls.Log) *Host {
	h := &Host{log: log, subscribers: map[*subscriber]bool{}, reads: map[string]int{}}
	h.forget()
	return h
}

func (h *Host) forget() {
	h.routes, h.addresses = map[routeKey][]byte{}, map[addressKey][]byte{}
	h.interfaces = map[interfaceKey][]byte{}
	h.realRoutes, h.realAddrs = map[routeKey]bool{}, map[addressKey]bool{}
}

// Reboot discards all changes: routes and addresses that these functions create are not persistent. Simulated adapters stay until
// SetAdapter removes them.
func (h *Host) Reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, row := range h.addresses {
		if row != nil && h.OnAddress != nil {
			h.OnAddress(false, netip.PrefixFrom(key.addr, int(row[addressBits])), h.name(key.luid))
		}
	}
	for key, row := range h.routes {
		if row != nil {
			h.tellRoute(false, key)
		}
	}
	h.forget()
}

func (h *Host) tellRoute(added bool, key routeKey) {
	if h.OnRoute != nil {
		h.OnRoute(added, key.prefix, key.via)
	}
}

// SetAdapter adds a simulated adapter with its addresses, adds addresses to an existing one, or removes it with everything on it.
func (h *Host) SetAdapter(name string, present bool, addresses []netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.adapters, func(a *adapter) bool { return a.own && a.name == name })
	switch {
	case present:
		if i < 0 {
			h.addAdapter(name)
			i = len(h.adapters) - 1
		}
		for _, p := range addresses {
			h.ownAddress(h.adapters[i].luid, p)
		}
	case !present && i >= 0:
		gone := h.adapters[i]
		luid := gone.luid
		h.adapters = slices.Delete(h.adapters, i, i+1)
		for key, row := range h.addresses {
			if key.luid == luid {
				delete(h.addresses, key)
				h.notify(kindAddress, deleted, row)
			}
		}
		for key := range h.interfaces {
			if key.luid == luid {
				delete(h.interfaces, key)
			}
		}
		for key, row := range h.routes {
			if key.luid == luid {
				delete(h.routes, key)
				h.notify(kindRoute, deleted, row)
			}
		}
		h.notifyAdapter(deleted, gone)
	}
}

// firstIndex is above the indexes that Linux assigns: Linux adapters may come later, and the index is part of the LUID. A LUID has 24 bits for it
// (ifdef.h, NET_LUID).
const firstIndex = 1 << 23

func (h *Host) addAdapter(name string) {
	index := uint32(firstIndex)
	for _, a := range h.adapters {
		index = max(index, a.index+1)
	}
	a := &adapter{luid: uint64(6)<<48 | uint64(index)<<24, index: index, name: name, own: true} // ifType 6: Ethernet
	h.adapters = append(h.adapters, a)
	h.notifyAdapter(added, a)
}

// notifyAdapter reports that an adapter appeared or disappeared, once per address family. Only an initial notification has no row
// (Microsoft's page of NotifyIpInterfaceChange).
func (h *Host) notifyAdapter(kind uint32, a *adapter) {
	for _, family := range []uint16{familyIPv4, familyIPv6} {
		h.notify(kindInterface, kind, h.interfaceRow(interfaceKey{family, a.luid}, a))
	}
}

// ownAddress adds the address that the host gets with a network, unless it has it.
func (h *Host) ownAddress(luid uint64, p netip.Prefix) {
	row := make([]byte, addressSize)
	putSockaddr(row[addressAddr:], p.Addr())
	le.PutUint64(row[addressLUID:], luid)
	row[addressBits] = byte(p.Bits())
	if key := keyOfAddress(row); h.addresses[key] == nil {
		h.putAddress(key, row)
	}
}

// find returns the adapter with a LUID or, if luid is 0, with an index.
func (h *Host) find(luid uint64, index uint32) *adapter {
	for _, a := range h.adapters {
		if luid != 0 && a.luid == luid || luid == 0 && index != 0 && a.index == index {
			return a
		}
	}
	return nil
}

// saw records one of Wine's adapters.
func (h *Host) saw(luid uint64, index uint32, name string) {
	a := h.find(luid, 0)
	if a == nil && luid != 0 {
		a = &adapter{luid: luid, index: index}
		h.adapters = append(h.adapters, a)
	}
	if a != nil && !a.own && name != "" {
		a.name = name
	}
}

func (h *Host) name(luid uint64) string {
	if a := h.find(luid, 0); a != nil && a.name != "" {
		return fmt.Sprintf("%q", a.name)
	}
	return fmt.Sprintf("LUID %#x", luid)
}

// hides reports whether Wine's adapter with a LUID is Hidden. Its name is known only after the table of adapters was
// read.
func (h *Host) hides(luid uint64) bool {
	a := h.find(luid, 0)
	return h.Hidden != nil && a != nil && !a.own && h.Hidden(a.name)
}

// String returns the simulated adapters and the changes, sorted.
func (h *Host) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, a := range h.adapters {
		if a.own {
			lines = append(lines, fmt.Sprintf("adapter %q\n", a.name))
		}
	}
	for key, row := range h.routes {
		if row == nil {
			lines = append(lines, "removed "+key.text(h.name(key.luid), 0)+"\n")
		} else {
			lines = append(lines, key.text(h.name(key.luid), le.Uint32(row[routeMetric:]))+"\n")
		}
	}
	for key, row := range h.addresses {
		switch {
		case row == nil:
			lines = append(lines, fmt.Sprintf("removed address %s on %s\n", key.addr, h.name(key.luid)))
		case row[addressSkip] != 0:
			lines = append(lines, fmt.Sprintf("address %s/%d on %s skip as source\n", key.addr, row[addressBits], h.name(key.luid)))
		default:
			lines = append(lines, fmt.Sprintf("address %s/%d on %s\n", key.addr, row[addressBits], h.name(key.luid)))
		}
	}
	for key, row := range h.interfaces {
		family := map[uint16]string{familyIPv4: "IPv4", familyIPv6: "IPv6"}[key.family]
		if settings := settingsOf(row).String(); settings != "" { // otherwise it has the defaults
			lines = append(lines, fmt.Sprintf("interface %s %s %s\n", h.name(key.luid), family, settings))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
