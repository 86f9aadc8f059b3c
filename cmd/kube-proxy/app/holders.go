package app

import (
	"cmp"
	"errors"
	"net/netip"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/routes"
)

// holders returns the configured holders of addresses other than Services; server is the API server's URL or address.
func (s *settings) holders(server string) proxy.Holders {
	h := proxy.Holders{PodRanges: s.clusterCIDRs, NodePortAddresses: s.nodePorts}
	if addr := serverAddress(server); addr.IsValid() {
		h.APIServers = append(h.APIServers, addr)
	}
	for _, listen := range s.listens() {
		h.Ports = append(h.Ports, proxy.ReservedPort{Port: listen.Port(), Protocol: v1.ProtocolTCP, Of: "the proxy"})
	}
	return h
}

// listens returns the addresses of the proxy's own servers.
func (s *settings) listens() (out []netip.AddrPort) {
	for _, listen := range []netip.AddrPort{s.config.Healthz, s.config.Metrics} {
		if listen.Port() != 0 {
			out = append(out, listen)
		}
	}
	return out
}

// serverAddress returns the API server's address if the URL's host is an IP address. A name may resolve to others at
// any time: then the endpoints of its Service are used.
func serverAddress(server string) netip.AddrPort {
	at, _, err := rest.DefaultServerURL(server, "", schema.GroupVersion{}, true)
	if err != nil {
		return netip.AddrPort{} // the client reports the error
	}
	addr, err := netip.ParseAddr(at.Hostname())
	if err != nil || addr.IsLoopback() {
		return netip.AddrPort{}
	}
	port := at.Port()
	if port == "" {
		port = map[string]string{"http": "80"}[at.Scheme]
	}
	number, err := strconv.ParseUint(cmp.Or(port, "443"), 10, 16)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr.Unmap().WithZone(""), uint16(number))
}

// apiServers returns the address in the API server's URL.
func apiServers(server string) []netip.Addr {
	if at := serverAddress(server); at.IsValid() {
		return []netip.Addr{at.Addr()}
	}
	return nil
}

// hostOf returns a function that reads this host's addresses and the next hops of its routes, both without those that
// the proxy added.
func hostOf(addresses relay.Addresses) func() (proxy.Host, error) {
	return func() (proxy.Host, error) {
		own, err := addresses.Host()
		hops, unread := host.NextHops(routes.Protocol)
		return proxy.Host{Addresses: own, NextHops: hops}, errors.Join(err, unread)
	}
}
