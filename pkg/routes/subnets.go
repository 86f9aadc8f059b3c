package routes

import (
	"net/netip"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
)

// On Windows HNS has in one entry, a remote subnet, what Linux has in three: the route into the tunnel, the neighbour and the forwarding entry. It
// is read and written in the words of Linux, so that one Plan and one comparison do for both.

// tunnels puts the remote subnets that HNS has into those words. A peer that it has twice is none that could be right.
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

// split parts a Diff into what concerns the routing table and what concerns the tunnel.
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
		} else { // the way of a former mode
			from.Remove, to.Add = append(from.Remove, r.Old), append(to.Add, r.New)
		}
	}
	return table, tunnel
}

// subnetsAfter is what HNS should have once what have says was changed by the tunnel's Diff. A route without its peer is no way, and left out.
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
