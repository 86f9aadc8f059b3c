package routes

import (
	"net/netip"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
)

// On Windows one HNS entry, a remote subnet, replaces three entries of Linux: the route into the tunnel, the neighbour
// and the forwarding entry. It is read and written in Linux terms, so that one Plan and one comparison serve both
// systems.

// tunnels converts HNS remote subnets to those terms. A peer that occurs twice is treated as wrong.
func tunnels(have []hns.RemoteSubnet) (ours []Route, peers []Peer) {
	times, seen := map[netip.Addr]int{}, map[netip.Prefix]bool{}
	for _, s := range have {
		times[s.Prefix.Addr()]++
	}
	for _, s := range have {
		inner, device := s.Prefix.Addr(), vxlan.DeviceName(s.Prefix.Addr().Is4())
		if !seen[s.Prefix] {
			ours = append(ours, Route{Dst: s.Prefix, Via: inner, Device: device})
		}
		seen[s.Prefix] = true
		switch {
		case times[inner] == 1:
			peers = append(peers, Peer{Device: device, Inner: inner, MAC: vxlan.MAC(s.MAC), Public: s.Provider})
		case times[inner] > 1:
			peers = append(peers, Peer{Device: device, Inner: inner})
			times[inner] = 0
		}
	}
	return ours, peers
}

// split splits a Diff into the parts for the routing table and for the tunnel.
func split(d Diff) (table, tunnel Diff) {
	tunnel.RemovePeers, tunnel.SetPeers = d.RemovePeers, d.SetPeers
	of := func(r Route) *Diff {
		if r.Device != "" {
			return &tunnel
		}
		return &table
	}
	for _, r := range d.Remove {
		of(r).Remove = append(of(r).Remove, r)
	}
	for _, r := range d.Add {
		of(r).Add = append(of(r).Add, r)
	}
	for _, r := range d.Replace {
		if from, to := of(r.Old), of(r.New); from == to {
			from.Replace = append(from.Replace, r)
		} else { // left from another mode
			from.Remove, to.Add = append(from.Remove, r.Old), append(to.Add, r.New)
		}
	}
	return table, tunnel
}

// subnetsAfter returns the subnets that HNS should have after the tunnel's Diff is applied to have. It omits a route
// without its peer.
func subnetsAfter(have []hns.RemoteSubnet, d Diff) []hns.RemoteSubnet {
	peers, now := make(map[netip.Addr]Peer, len(have)), make(map[netip.Prefix]bool, len(have))
	for _, s := range have {
		peers[s.Prefix.Addr()], now[s.Prefix] = Peer{MAC: vxlan.MAC(s.MAC), Public: s.Provider}, true
	}
	for _, p := range d.RemovePeers {
		delete(peers, p.Inner) // an invalid Inner is overwritten below
	}
	for _, p := range d.SetPeers {
		peers[p.Inner] = p
	}
	for _, r := range d.Remove {
		delete(now, r.Dst)
	}
	for _, r := range d.Replace {
		delete(now, r.Old.Dst)
		now[r.New.Dst] = true
	}
	for _, r := range d.Add {
		now[r.Dst] = true
	}
	out := make([]hns.RemoteSubnet, 0, len(now))
	for prefix := range now {
		if p, known := peers[prefix.Addr()]; known {
			out = append(out, hns.RemoteSubnet{Prefix: prefix, Provider: p.Public, MAC: p.MAC})
		}
	}
	return out
}
