package hns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// PodNetwork is a network on which we create the pods' endpoints: an Overlay or a Bridge.
type PodNetwork struct {
	Name     string
	Subnet   netip.Prefix   // IPv4 range of this host's pods
	Gateway  netip.Addr     // the pods' gateway
	Provider netip.Addr     // for overlays: this host's address, the source of tunnelled packets; invalid: no tunnel
	Keep     []netip.Prefix // destinations for which pods keep their address: exceptions of OutBoundNAT
	Routes   []netip.Prefix // policy ROUTE with NeedEncap
}

// PodEndpoint is a pod's endpoint on a PodNetwork.
type PodEndpoint struct {
	ID        ID     // zero: not created yet
	Container string // the pod's infra container, part of the endpoint's name
	Addr      netip.Addr
	DNS       []string // servers
	Searches  []string
	Attached  []string // connected containers
}

// reserved is the number of addresses at the start of a Subnet that pods do not get: the network's own, HNS' router,
// and an overlay's source VIP or a bridge's host endpoint.
const reserved = 3

// EndpointName returns a pod's endpoint name in the form of win-overlay and win-bridge, so that programs that search by
// name find ours.
func EndpointName(container, network string) string { return container + "_" + network }

// containerOf returns the infra container in an endpoint's name; "": not ours.
func containerOf(name, network string) string {
	container, ours := strings.CutSuffix(name, "_"+network)
	if !ours {
		return ""
	}
	return container
}

// PodMAC returns the hardware address of a pod's endpoint on an overlay. As with win-overlay and flannel, it is derived
// from its IP address (prefix 0E-2A).
func PodMAC(addr netip.Addr) string {
	b := addr.As4()
	return fmt.Sprintf("0E-2A-%02X-%02X-%02X-%02X", b[0], b[1], b[2], b[3])
}

// Free returns the first address behind after, wrapping around, that pods may have and that is not in taken. If after
// is invalid, it starts at the beginning. So a released address is reused last, because other machines may still
// associate it with its former pod.
func (n PodNetwork) Free(taken map[netip.Addr]bool, after netip.Addr) (netip.Addr, error) {
	first := n.Subnet.Masked().Addr().As4()
	start := binary.BigEndian.Uint32(first[:]) + reserved
	size := int64(1) << (32 - n.Subnet.Bits())
	count := uint32(max(size-reserved-1, 0)) // the last is the broadcast address
	from := uint32(0)
	if after.Is4() {
		bytes := after.As4()
		if at := binary.BigEndian.Uint32(bytes[:]) - start; at < count { // wraps below start
			from = at + 1
		}
	}
	for i := range count {
		var at [4]byte
		binary.BigEndian.PutUint32(at[:], start+(from+i)%count)
		if addr := netip.AddrFrom4(at); !taken[addr] {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("network %q has no address left in %s: %d are taken", n.Name, n.Subnet, len(taken))
}
