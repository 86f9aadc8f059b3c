package routes

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
)

// wanted returns the remote subnets of HNS for exactly a State.
func wanted(s State) (out []hns.RemoteSubnet) {
	for i, r := range s.Routes {
		out = append(out, hns.RemoteSubnet{Prefix: r.Dst, Provider: s.Peers[i].Public, MAC: s.Peers[i].MAC})
	}
	return out
}

func same(a, b []hns.RemoteSubnet) bool {
	remove, add := hns.ChangedSubnets(a, b)
	return len(remove) == 0 && len(add) == 0 && len(a) == len(b)
}

// applied brings HNS and the routing table to a State as RoutingTable does on Windows.
func applied(have []hns.RemoteSubnet, table []Route, want State) ([]hns.RemoteSubnet, Diff, []error) {
	ours, peers := tunnels(have)
	d, errs := compare(Host{Ours: append(ours, table...), Peers: peers}, want)
	routes, tunnel := split(d)
	return subnetsAfter(have, tunnel), routes, errs
}

func TestSubnetsFollow(t *testing.T) {
	all, problems := Plan(Overlay, "Lin01", announce(seeds()...), Options{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	full := wanted(all)
	moved, rebuilt, resized, strange := slices.Clone(full), slices.Clone(full), slices.Clone(full), slices.Clone(full)
	moved[1].Provider = netip.MustParseAddr("10.1.0.99")
	rebuilt[1].MAC = [6]byte{0, 0x15, 0x5d, 1, 2, 3}
	resized[1].Prefix = netip.MustParsePrefix("192.168.2.0/25")
	strange = append(strange, hns.RemoteSubnet{Prefix: netip.MustParsePrefix("192.168.9.0/24"), Provider: netip.MustParseAddr("10.1.0.19"), MAC: [6]byte{2, 2, 2, 2, 2, 2}})
	swapped := slices.Clone(full)
	swapped[0].Prefix, swapped[1].Prefix = full[1].Prefix, full[0].Prefix
	for name, have := range map[string][]hns.RemoteSubnet{"right": full, "nothing there": nil, "a node gone from HNS": full[:1], "a node too much": strange,
		"a node moved": moved, "a node's network recreated": rebuilt, "a range resized": resized, "two ends swapped": swapped} {
		got, table, errs := applied(have, nil, all)
		if !same(got, full) || !table.Empty() || len(errs) > 0 {
			t.Errorf("%s: %v, %v, %v, want %v", name, got, table, errs, full)
		}
		if none, _, _ := applied(have, nil, State{}); len(none) > 0 {
			t.Errorf("%s: nothing is wanted, %v stays", name, none)
		}
	}
}

// TestModeOfRoutes: a host that was in host-gateway mode has routes in its table, which are replaced by those of the
// tunnel, and vice versa.
func TestModeOfRoutes(t *testing.T) {
	nodes := announce(seeds()...)
	before, _ := Plan(HostGateway, "Lin01", nodes, Options{})
	after, _ := Plan(Overlay, "Lin01", nodes, Options{})
	subnets, table, _ := applied(nil, before.Routes, after)
	if !same(subnets, wanted(after)) || len(table.Remove) != len(before.Routes) || len(table.Add)+len(table.Replace) > 0 {
		t.Errorf("to overlay: %v, %+v", subnets, table)
	}
	subnets, table, _ = applied(wanted(after), nil, before)
	if len(subnets) > 0 || len(table.Add) != len(before.Routes) || len(table.Remove)+len(table.Replace) > 0 {
		t.Errorf("to host-gateway: %v, %+v", subnets, table)
	}
}

// TestSubnetsAddUp: from any state of HNS, one comparison leads to the wanted state, and the next finds nothing to do.
func TestSubnetsAddUp(t *testing.T) {
	all, _ := Plan(Overlay, "control-plane", announce(seeds()...), Options{})
	full := wanted(all)
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 6))
		var have []hns.RemoteSubnet
		for _, s := range full {
			for range random.IntN(3) {
				other := full[random.IntN(len(full))]
				one := hns.RemoteSubnet{Prefix: s.Prefix, Provider: other.Provider, MAC: other.MAC}
				if random.IntN(4) == 0 {
					one.Prefix = netip.PrefixFrom(s.Prefix.Addr(), 25+random.IntN(2))
				}
				if !slices.Contains(have, one) {
					have = append(have, one)
				}
			}
		}
		got, _, _ := applied(have, nil, all)
		if !same(got, full) {
			t.Fatalf("seed %d: from %v to %v, want %v", seed, have, got, full)
		}
		ours, peers := tunnels(got)
		if d, errs := compare(Host{Ours: ours, Peers: peers}, all); !d.Empty() || len(errs) > 0 {
			t.Fatalf("seed %d: again %+v, %v", seed, d, errs)
		}
	}
}

// TestTunnelUnknown: if HNS does not respond, nothing is derived from its state, and the table's routes are still
// maintained.
func TestTunnelUnknown(t *testing.T) {
	nodes := announce(seeds()...)
	down := errors.New("HNS does not run")
	overlay, _ := Plan(Overlay, "Lin01", nodes, Options{})
	if d, errs := compare(Host{TunnelErr: down}, overlay); !d.Empty() || len(errs) != 1 || !strings.Contains(errs[0].Error(), "HNS does not run") {
		t.Errorf("overlay: %+v, %v", d, errs)
	}
	direct, _ := Plan(HostGateway, "Lin01", nodes, Options{})
	if d, errs := compare(Host{TunnelErr: down}, direct); len(d.Add) != len(direct.Routes) || len(errs) > 0 {
		t.Errorf("host-gateway: %+v, %v", d, errs)
	}
}

// TestWindowsPeer: a tunnel end that HNS created differs only in the form of its hardware address.
func TestWindowsPeer(t *testing.T) {
	nodes := seeds()
	d := vxlan.NewDevice(pfx("192.168.1.0/24"), netip.MustParseAddr("10.1.0.12"), 1500)
	d.MAC = vxlan.MAC{0, 0x15, 0x5d, 0x4b, 0x1c, 0x8f}
	nodes[1].Annotations = vxlan.Annotations([]vxlan.Device{d}, nil)
	state, _ := Plan(Overlay, "Lin01", nodes[:2], Options{})
	if got := state.String(); !strings.Contains(got, "192.168.1.0 lladdr 00:15:5d:4b:1c:8f dst 10.1.0.12 dev winkube.4096 # Win01") {
		t.Error(got)
	}
}
