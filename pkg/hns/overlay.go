package hns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Overlay is an overlay network (VXLAN, RFC 7348) for the pods of this host. HNS' distributed router has its gateway's
// address; no adapter of the host does.
type Overlay struct {
	Name     string
	Subnet   netip.Prefix   // IPv4 range of this host's pods
	Gateway  netip.Addr     // the pods' gateway: the first address of Subnet
	VNI      uint32         // 4096 to 65535: RemoteSubnetRoute has 16 bits for it
	Adapter  string         // network adapter of the network; "": HNS chooses
	Provider netip.Addr     // this host's address, the end of its tunnel
	Keep     []netip.Prefix // destinations for which pods keep their address: exceptions of OutBoundNAT
	Services []netip.Prefix // destinations that stay in the overlay, where load balancers handle them: policy ROUTE with NeedEncap
}

// SourceVIP returns the source address in Subnet for a host's load balancers (kube-proxy's --source-vip); no pod gets
// it.
func SourceVIP(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next().Next() }

// Pods returns the PodNetwork on which we create the pods' endpoints.
func (o Overlay) Pods() PodNetwork {
	return PodNetwork{Name: o.Name, Subnet: o.Subnet, Gateway: o.Gateway, Provider: o.Provider, Keep: o.Keep, Routes: o.Services}
}

// fits says why a network with o's name differs from o; nil: it does not.
func (o Overlay) fits(kind string, subnet netip.Prefix) error {
	switch {
	case kind != "Overlay":
		return fmt.Errorf("network %q is of type %s, want Overlay; remove it (Get-HnsNetwork | ? Name -eq %[1]s | Remove-HnsNetwork)", o.Name, kind)
	case subnet != o.Subnet:
		return fmt.Errorf("%w: overlay network %q has %s, want %s", ErrDiffers, o.Name, subnet, o.Subnet)
	}
	return nil
}

// settled parses what HNS reports of its end of o's tunnel: the host's address and the hardware address of its
// distributed router.
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

// hardware parses an Ethernet address such as 00-15-5D-00-00-02.
func hardware(text string) (out [6]byte, err error) {
	mac, err := net.ParseMAC(text)
	if err == nil && len(mac) != len(out) {
		err = fmt.Errorf("%q has %d bytes, want %d", text, len(mac), len(out))
	}
	copy(out[:], mac)
	return out, err
}

// ChangedSubnets returns the subnets to remove from have, and those to add after that, to get want. Both are sorted.
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
