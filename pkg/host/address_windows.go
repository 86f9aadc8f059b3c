package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// defaultRoutes returns the indexes of the interfaces of the best IPv4 and IPv6 default routes; 0: none. The
// interface's own metric is added to the route's.
func defaultRoutes() (four, six int, err error) {
	adapters, err := winipcfg.GetAdaptersAddresses(windows.AF_UNSPEC, winipcfg.GAAFlagDefault)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot list adapters: %w", err)
	}
	metrics4, metrics6 := map[uint32]uint32{}, map[uint32]uint32{}
	for _, a := range adapters {
		metrics4[a.IfIndex], metrics6[a.IPv6IfIndex] = a.Ipv4Metric, a.Ipv6Metric
	}
	four, err = defaultRoute(windows.AF_INET, metrics4)
	six, err6 := defaultRoute(windows.AF_INET6, metrics6)
	return four, six, errors.Join(err, err6)
}

func defaultRoute(family winipcfg.AddressFamily, metrics map[uint32]uint32) (int, error) {
	routes, err := winipcfg.GetIPForwardTable2(family)
	if err != nil {
		return 0, fmt.Errorf("cannot list routes: %w", err)
	}
	index, best := 0, uint64(0)
	for _, r := range routes {
		if r.DestinationPrefix.PrefixLength != 0 || r.Loopback {
			continue
		}
		if metric := uint64(r.Metric) + uint64(metrics[r.InterfaceIndex]); index == 0 || metric < best {
			index, best = int(r.InterfaceIndex), metric
		}
	}
	return index, nil
}

// innerInterfaces returns none: on Windows the engine does not publish ports by address.
func innerInterfaces() (inner, dummies map[int]bool, err error) { return nil, nil, nil }

// addressesOf returns the addresses of interfaces by index.
func addressesOf(list []net.Interface) (map[int][]netip.Addr, error) {
	out := map[int][]netip.Addr{}
	for i := range list {
		addrs, err := list[i].Addrs()
		if err != nil {
			continue // the interface has gone
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if addr, ok := netip.AddrFromSlice(n.IP); ok {
					out[list[i].Index] = append(out[list[i].Index], addr.Unmap())
				}
			}
		}
	}
	return out, nil
}
