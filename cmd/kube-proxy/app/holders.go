package app

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/routes"
)

// holders is what the command line tells of who holds addresses beside Services; server is the API server's URL or address.
func (s *settings) holders(server string) proxy.Holders {
	h := proxy.Holders{PodRanges: s.clusterCIDRs, NodePortAddresses: s.nodePorts}
	if addr := serverAddress(server); addr.IsValid() {
		h.APIServers = append(h.APIServers, addr)
	}
	for _, listen := range []netip.AddrPort{s.config.Healthz, s.config.Metrics} {
		if listen.Port() != 0 {
			h.Ports = append(h.Ports, proxy.ReservedPort{Port: listen.Port(), Of: "the proxy"})
		}
	}
	return h
}

// serverAddress is that of an API server whose host is an IP address. A name may lead to others at any time and is not looked up.
func serverAddress(server string) netip.AddrPort {
	at, err := url.Parse(server)
	if err != nil || at.Host == "" {
		if at, err = url.Parse("https://" + server); err != nil {
			return netip.AddrPort{}
		}
	}
	addr, err := netip.ParseAddr(at.Hostname())
	if err != nil || addr.IsLoopback() {
		return netip.AddrPort{}
	}
	port := uint64(443)
	if at.Port() != "" {
		if port, err = strconv.ParseUint(at.Port(), 10, 16); err != nil {
			return netip.AddrPort{}
		}
	} else if at.Scheme == "http" {
		port = 80
	}
	return netip.AddrPortFrom(addr.Unmap().WithZone(""), uint16(port))
}

// hostOf reads the addresses of this host that are not the proxy's, and the next hops of its routes that are not the proxy's.
func hostOf(addresses relay.Addresses) func() (proxy.Host, error) {
	return func() (proxy.Host, error) {
		own, err := addresses.Host()
		hops, unread := host.NextHops(routes.Protocol)
		return proxy.Host{Addresses: own, NextHops: hops}, errors.Join(err, unread)
	}
}
