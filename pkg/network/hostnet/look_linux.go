package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Look implements network.Host.
func (*host) Look() (network.Surroundings, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return network.Surroundings{}, fmt.Errorf("cannot list interfaces: %w", err)
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return network.Surroundings{}, fmt.Errorf("cannot list addresses: %w", err)
	}
	s, all := network.Surroundings{}, rpFilter("all")
	for _, link := range links {
		a := link.Attrs()
		l := network.Link{Name: a.Name, Up: a.Flags&net.FlagUp != 0, MTU: a.MTU}
		v, ok := link.(*netlink.Vxlan)
		l.Tunnel = ok && v.VxlanId == vxlan.VNI && v.Port == vxlan.Port
		for _, addr := range addrs {
			if addr.LinkIndex == a.Index {
				l.Addrs = append(l.Addrs, prefixOf(addr.IPNet))
			}
		}
		l.Strict = len(l.Addrs) > 0 && max(all, rpFilter(a.Name)) == "1"
		s.Links = append(s.Links, l)
	}
	s.Routes, err = lookRoutes(links)
	return s, err
}

// rpFilter returns how an interface filters by reverse path. The greater of its value and that of "all" takes effect (ip-sysctl.rst); 2 is loose.
func rpFilter(name string) string {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv4/conf", name, "rp_filter"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}

func lookRoutes(links []netlink.Link) (out []network.HostRoute, err error) {
	list, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("cannot list the main routing table: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, r := range list {
		dst := prefixOf(r.Dst)
		if !dst.IsValid() || dst.Bits() == 0 {
			continue
		}
		via, _ := netip.AddrFromSlice(r.Gw)
		out = append(out, network.HostRoute{Dst: dst, Via: via.Unmap(), Link: names[r.LinkIndex], Ours: r.Protocol == routeProtocol})
	}
	return out, nil
}
