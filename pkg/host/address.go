package host

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// iface is a network interface that is up, with the fields that choose needs.
type iface struct {
	Name     string
	Index    int
	Loopback bool
	Default4 bool // has the IPv4 default route
	Default6 bool
	Inner    bool // a bridge, a tunnel or a dummy: it reaches no other host
	Dummy    bool
	Addrs    []netip.Addr
}

// Addresses lists the unicast addresses of all interfaces that are up, without zones. Loopback and link-local ones are
// included.
func Addresses() ([]netip.Addr, error) {
	ifaces, err := interfaces()
	var all []netip.Addr
	for _, i := range ifaces {
		all = append(all, i.Addrs...)
	}
	return all, err
}

// Doors returns the addresses at which other machines and the host itself reach this host: sure, 127.0.0.1 and ::1, and
// those of every interface that leads to other machines; unique, without zones and link-local ones. Addresses of
// bridges, tunnels and dummies are excluded: they belong to containers or services.
func Doors(sure []netip.Addr) ([]netip.Addr, error) {
	ifaces, err := interfaces()
	if err != nil {
		return nil, err
	}
	return doors(ifaces, sure), nil
}

func doors(ifaces []iface, sure []netip.Addr) []netip.Addr {
	out := append(slices.Clone(sure), netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	for _, i := range ifaces {
		if i.Inner || i.Loopback {
			continue
		}
		for _, addr := range i.Addrs {
			if !addr.IsLinkLocalUnicast() && !slices.Contains(out, addr) {
				out = append(out, addr)
			}
		}
	}
	return out
}

// Own returns this host's addresses without Service addresses: sure, 127.0.0.1 and ::1, and those of all interfaces,
// including bridges and tunnels; unique, without zones. Loopback and dummies are excluded, because service proxies add
// local addresses to them.
func Own(sure []netip.Addr) ([]netip.Addr, error) {
	ifaces, err := interfaces()
	if err != nil {
		return nil, err
	}
	return own(ifaces, sure), nil
}

func own(ifaces []iface, sure []netip.Addr) []netip.Addr {
	out := append(slices.Clone(sure), netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	for _, i := range ifaces {
		if i.Loopback || i.Dummy || ofServices(i.Name) {
			continue
		}
		for _, addr := range i.Addrs {
			if !slices.Contains(out, addr) {
				out = append(out, addr)
			}
		}
	}
	return out
}

// ofServices reports whether an interface's name is one of those that hold service addresses: of this proxy, of
// kube-proxy's ipvs mode and, on Windows, of its userspace mode, whose adapter HNS also uses.
func ofServices(name string) bool {
	for _, prefix := range []string{"winkube-", "kube-ipvs", "vEthernet (winkube", "vEthernet (HNS Internal"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// NodeAddress chooses the address under which others reach this node, as upstream does: that of the interface with the
// default route, or else of the first interface that seems to lead to other machines; IPv4 before IPv6. override (the
// flag --node-ip) may be "0.0.0.0" or "::", which set the preferred family, or one or two addresses of this host,
// joined by a comma, one per family.
func NodeAddress(override string) ([]netip.Addr, error) {
	ifaces, err := interfaces()
	if err != nil {
		return nil, err
	}
	return choose(ifaces, override)
}

// interfaces lists the interfaces that are up, in order of their index.
func interfaces() ([]iface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list network interfaces: %w", err)
	}
	default4, default6, err := defaultRoutes()
	if err != nil {
		return nil, fmt.Errorf("cannot list default routes: %w", err)
	}
	inner, dummies, err := innerInterfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list network interfaces: %w", err)
	}
	addrs, err := addressesOf(list)
	if err != nil {
		return nil, fmt.Errorf("cannot list the addresses of network interfaces: %w", err)
	}
	var out []iface
	for _, i := range list {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		out = append(out, iface{Name: i.Name, Index: i.Index, Loopback: i.Flags&net.FlagLoopback != 0,
			Default4: i.Index == default4, Default6: i.Index == default6, Inner: inner[i.Index], Dummy: dummies[i.Index], Addrs: addrs[i.Index]})
	}
	slices.SortStableFunc(out, func(a, b iface) int { return cmp.Compare(a.Index, b.Index) })
	return out, nil
}

// choose is NodeAddress for given interfaces.
func choose(ifaces []iface, override string) ([]netip.Addr, error) {
	switch override {
	case "", "0.0.0.0":
		return chooseDefault(ifaces, netip.Addr.Is4, netip.Addr.Is6)
	case "::":
		return chooseDefault(ifaces, netip.Addr.Is6, netip.Addr.Is4)
	}
	var out []netip.Addr
	for part := range strings.SplitSeq(override, ",") {
		addr, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("node address %q: must be an IP address of this host, 0.0.0.0 or :: for a family", part)
		}
		if err := usable(ifaces, addr.Unmap()); err != nil {
			return nil, err
		}
		out = append(out, addr.Unmap())
	}
	if len(out) > 2 || len(out) == 2 && out[0].Is4() == out[1].Is4() {
		return nil, fmt.Errorf("node address %q: must be one address, or one of IPv4 and one of IPv6", override)
	}
	return out, nil
}

// usable says why the node cannot use a configured address; nil: it can.
func usable(ifaces []iface, addr netip.Addr) error {
	switch {
	case addr.IsLoopback(), addr.IsMulticast(), addr.IsLinkLocalUnicast(), addr.IsUnspecified():
		return fmt.Errorf("node address %s: other machines cannot reach it; must be a unicast address of an interface of this host", addr)
	}
	var have []string
	for _, i := range ifaces {
		if slices.Contains(i.Addrs, addr) {
			return nil
		}
		for _, a := range i.Addrs {
			if a.IsGlobalUnicast() {
				have = append(have, a.String())
			}
		}
	}
	return fmt.Errorf("node address %s: no interface of this host has it; it has %s", addr, strings.Join(have, ", "))
}

// chooseDefault picks the first address that others can reach, in order of families. A family with a default route
// precedes one without: an address without a route reaches only neighbours.
func chooseDefault(ifaces []iface, families ...func(netip.Addr) bool) ([]netip.Addr, error) {
	tests := []func(iface, netip.Addr) bool{
		func(i iface, a netip.Addr) bool { return a.Is4() && i.Default4 || a.Is6() && i.Default6 },
		func(i iface, _ netip.Addr) bool { return !i.Loopback && !ofContainers(i.Name) },
	}
	for _, test := range tests {
		for _, family := range families {
			for _, i := range ifaces {
				for _, a := range i.Addrs {
					if family(a) && a.IsGlobalUnicast() && test(i, a) {
						return []netip.Addr{a}, nil
					}
				}
			}
		}
	}
	return nil, fmt.Errorf("cannot choose the node's address: no interface that is up has an address that other machines can reach; set --node-ip")
}

// ofContainers reports whether an interface's name is one of those that lead only to containers of this host: Docker's
// bridges and ours, the interface of service addresses, and Windows' NAT switches.
func ofContainers(name string) bool {
	for _, prefix := range []string{"docker", "br-", "veth", "cni", "cbr", "kube", "winkube", "virbr", "vEthernet (nat", "vEthernet (HNS", "vEthernet (Default Switch"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
