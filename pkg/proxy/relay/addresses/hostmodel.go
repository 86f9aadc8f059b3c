package addresses

import (
	"net/netip"
	"slices"
)

// HostModel is how Windows lets an interface handle packets of addresses that it does not have (MIB_IPINTERFACE_ROW),
// for one family.
//
// By default Windows uses the strong host model (TechNet Magazine, The Cable Guy, September 2007): a reply leaves only
// through the interface that has its source address. The interface with the service addresses has no route to any
// client. So a reply leaves only if that interface uses the weak host model for sending, or forwards, as Antrea's
// New-KubeProxyServiceInterface enables for upstream's userspace proxy (hack/windows/Helper.psm1).
type HostModel struct{ Forwarding, WeakSend, WeakReceive bool }

// Serving returns the settings of an interface with service addresses. WeakReceive marks that we enabled forwarding,
// because Windows has no field for such a mark; the interface itself does not need it.
func (m HostModel) Serving() HostModel {
	m.WeakReceive = m.WeakReceive || !m.Forwarding
	m.Forwarding, m.WeakSend = true, true
	return m
}

// Before returns the settings of an interface before Serving. held says that it has, or had, service addresses:
// otherwise only the mark counts.
func (m HostModel) Before(held bool) HostModel {
	switch {
	case m.Forwarding && m.WeakSend && m.WeakReceive:
		return HostModel{}
	case m.Forwarding && m.WeakSend && held:
		return HostModel{Forwarding: true}
	}
	return m
}

// next returns the settings for an interface with known addresses (true: ours) that should have want, for IPv4 or IPv6.
func (m HostModel) next(known map[netip.Addr]bool, want []netip.Addr, v6 bool) HostModel {
	if serves(want, v6) {
		return m.Serving()
	}
	held := false
	for addr, ours := range known {
		held = held || ours && addr.Is6() == v6
	}
	return m.Before(held)
}

// serves reports whether one of the addresses is of a family.
func serves(want []netip.Addr, v6 bool) bool {
	return slices.ContainsFunc(want, func(addr netip.Addr) bool { return addr.Is6() == v6 })
}
