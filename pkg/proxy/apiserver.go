package proxy

import (
	"net/netip"
	"slices"
)

// tellAPIServers reports the API server's addresses if names contains its Service, or if names is nil (a full sync).
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
