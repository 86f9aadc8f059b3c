package proxy

import (
	"net/netip"
	"slices"
)

// tellAPIServers passes on where the API server is, where it is among names, or where everything is synced.
func (l *Loop) tellAPIServers(names []ServiceName) {
	if l.cfg.APIServers == nil || names != nil && !slices.Contains(names, apiServer) {
		return
	}
	var addrs []netip.Addr
	for _, r := range l.tracker.Table().Of(apiServer) {
		if r.Kind == ClusterIP {
			addrs = append(addrs, r.Front.Addr())
		}
		for _, b := range r.Backends {
			addrs = append(addrs, b.Addr.Addr())
		}
	}
	l.cfg.APIServers(addrs)
}
