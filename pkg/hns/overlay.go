package hns

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Overlay is an overlay network (VXLAN, RFC 7348) for the pods of this host. HNS' distributed router has its gateway's address: no adapter of
// the host does.
type Overlay struct {
	Name     string
	Subnet   netip.Prefix   // IPv4: this host's pods
	Gateway  netip.Addr     // the pods': the first address of Subnet
	VNI      uint32         // 4096 to 65535: RemoteSubnetRoute has 16 bits for it
	Adapter  string         // network adapter that the network takes; "": HNS chooses
	Provider netip.Addr     // this host's address, at which others reach its tunnel
	Keep     []netip.Prefix // towards these pods keep their address: exceptions of OutBoundNAT
	Services []netip.Prefix // what pods send there stays in the overlay, where load balancers take it: policy ROUTE with NeedEncap
}

// PodEndpoint is a pod's endpoint on an Overlay.
type PodEndpoint struct {
	ID        string // "": not made yet
	Container string // the pod's infra container, by which the endpoint is named
	Addr      netip.Addr
	DNS       []string // servers
	Searches  []string
	Attached  []string // containers that are connected
}

// reserved addresses begin a Subnet: the network's own, the gateway's, the source VIP.
const reserved = 3

// SourceVIP is the address of a Subnet from which a host's load balancers ask (kube-proxy's --source-vip): no pod gets it.
func SourceVIP(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next().Next() }

// EndpointName is what win-overlay calls the endpoint of a pod: what looks for one by name finds ours.
func EndpointName(container, network string) string { return container + "_" + network }

// containerOf is the infra container in an endpoint's name, "" for endpoints of others.
func containerOf(name, network string) string {
	container, ours := strings.CutSuffix(name, "_"+network)
	if !ours {
		return ""
	}
	return container
}

// PodMAC is the hardware address of a pod's endpoint: that of win-overlay and flannel (prefix 0E-2A), which follows from its address.
func PodMAC(addr netip.Addr) string {
	b := addr.As4()
	return fmt.Sprintf("0E-2A-%02X-%02X-%02X-%02X", b[0], b[1], b[2], b[3])
}

// fits says why a network that has o's name is not o's.
func (o Overlay) fits(kind string, subnet netip.Prefix) error {
	switch {
	case kind != "Overlay":
		return fmt.Errorf("network %q is of type %s, want Overlay; remove it (Get-HnsNetwork | ? Name -eq %[1]s | Remove-HnsNetwork)", o.Name, kind)
	case subnet != o.Subnet:
		return fmt.Errorf("%w: network %q has %s, want %s", ErrDiffers, o.Name, subnet, o.Subnet)
	}
	return nil
}

// settled reads what HNS says of its end of o's tunnel: the host's address and the hardware address of its distributed router.
func (o Overlay) settled(provider, router string) ([6]byte, error) {
	mac, err := hardware(router)
	if provider == "" || router == "" || err != nil {
		return mac, fmt.Errorf("network %s: %w: its address is %q, its hardware address %q", o.Name, ErrUnsettled, provider, router)
	}
	if provider != o.Provider.String() {
		return mac, fmt.Errorf("network %s tunnels from %s, %w %s; name its adapter (--interface), and remove the network (Get-HnsNetwork | ? Name -eq %[1]s | Remove-HnsNetwork)",
			o.Name, provider, ErrElsewhere, o.Provider)
	}
	return mac, nil
}

// hardware reads an address of Ethernet, as 00-15-5D-00-00-02.
func hardware(text string) (out [6]byte, err error) {
	mac, err := net.ParseMAC(text)
	if err == nil && len(mac) != len(out) {
		err = fmt.Errorf("%q has %d bytes, want %d", text, len(mac), len(out))
	}
	copy(out[:], mac)
	return out, err
}

// Free is the first address after that one, and from the start again, that pods may have and none of taken is. An invalid after is the start. An
// address that was given back is thus taken again last: others may remember whose it was.
func (o Overlay) Free(taken map[netip.Addr]bool, after netip.Addr) (netip.Addr, error) {
	first := o.Subnet.Masked().Addr().As4()
	start := binary.BigEndian.Uint32(first[:]) + reserved
	size := int64(1) << (32 - o.Subnet.Bits())
	count := uint32(max(size-reserved-1, 0)) // the last is the broadcast address
	from := uint32(0)
	if after.Is4() {
		bytes := after.As4()
		if at := binary.BigEndian.Uint32(bytes[:]) - start; at < count { // below start it wraps
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
	return netip.Addr{}, fmt.Errorf("network %q has no address left in %s: %d are taken", o.Name, o.Subnet, len(taken))
}

// ChangedSubnets is what is to be removed from what HNS has, and then to be added, for it to have want. Both are sorted.
func ChangedSubnets(have, want []RemoteSubnet) (remove, add []RemoteSubnet) {
	missing := func(list []RemoteSubnet) func(RemoteSubnet) bool {
		in := make(map[RemoteSubnet]bool, len(list))
		for _, s := range list {
			in[s] = true
		}
		return func(s RemoteSubnet) bool { return in[s] }
	}
	remove = slices.DeleteFunc(slices.Clone(have), missing(want))
	add = slices.DeleteFunc(slices.Clone(want), missing(have))
	for _, list := range [][]RemoteSubnet{remove, add} {
		slices.SortFunc(list, func(a, b RemoteSubnet) int { return a.Prefix.Addr().Compare(b.Prefix.Addr()) })
	}
	return remove, add
}
