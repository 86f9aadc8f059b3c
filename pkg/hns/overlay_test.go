package hns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestFree(t *testing.T) {
	addr := netip.MustParseAddr
	taken := func(list ...string) map[netip.Addr]bool {
		out := map[netip.Addr]bool{}
		for _, text := range list {
			out[addr(text)] = true
		}
		return out
	}
	for name, c := range map[string]struct {
		subnet string
		taken  map[netip.Addr]bool
		after  netip.Addr
		want   string // "": none
	}{
		"the first":                  {"10.244.1.0/24", nil, netip.Addr{}, "10.244.1.3"},
		"the next":                   {"10.244.1.0/24", taken("10.244.1.3"), addr("10.244.1.3"), "10.244.1.4"},
		"one that was given back":    {"10.244.1.0/24", nil, addr("10.244.1.7"), "10.244.1.8"},
		"taken ones are left out":    {"10.244.1.0/24", taken("10.244.1.8", "10.244.1.9"), addr("10.244.1.7"), "10.244.1.10"},
		"from the end to the start":  {"10.244.1.0/24", nil, addr("10.244.1.254"), "10.244.1.3"},
		"after the source VIP":       {"10.244.1.0/24", nil, addr("10.244.1.2"), "10.244.1.3"},
		"after one of another range": {"10.244.1.0/24", nil, addr("10.244.2.9"), "10.244.1.3"},
		"the only one":               {"10.244.1.0/29", taken("10.244.1.3", "10.244.1.4", "10.244.1.6"), addr("10.244.1.5"), "10.244.1.5"},
		"none is left":               {"10.244.1.0/29", taken("10.244.1.3", "10.244.1.4", "10.244.1.5", "10.244.1.6"), netip.Addr{}, ""},
		"no room at all":             {"10.244.1.0/30", nil, netip.Addr{}, ""},
	} {
		got, err := PodNetwork{Name: "pods", Subnet: netip.MustParsePrefix(c.subnet)}.Free(c.taken, c.after)
		if c.want == "" {
			if err == nil || !strings.Contains(err.Error(), "no address left in "+c.subnet) {
				t.Errorf("%s: %s, %v", name, got, err)
			}
			continue
		}
		if err != nil || got != addr(c.want) {
			t.Errorf("%s: %s, %v, want %s", name, got, err, c.want)
		}
	}
}

// TestFreeTakesAll: every address except the reserved ones is returned once.
func TestFreeTakesAll(t *testing.T) {
	o := PodNetwork{Name: "pods", Subnet: netip.MustParsePrefix("10.244.1.0/26")}
	taken, last := map[netip.Addr]bool{}, netip.MustParseAddr("10.244.1.40")
	for range 64 - 4 {
		addr, err := o.Free(taken, last)
		if err != nil || taken[addr] || !o.Subnet.Contains(addr) || addr.Compare(SourceVIP(o.Subnet)) <= 0 || addr == netip.MustParseAddr("10.244.1.63") {
			t.Fatalf("%s of %v: %v", addr, taken, err)
		}
		taken[addr], last = true, addr
	}
	if addr, err := o.Free(taken, last); err == nil {
		t.Errorf("%s is given twice", addr)
	}
}

func TestEndpointNames(t *testing.T) {
	if got := PodMAC(netip.MustParseAddr("10.244.1.7")); got != "0E-2A-0A-F4-01-07" {
		t.Error(got)
	}
	if got := SourceVIP(netip.MustParsePrefix("10.244.1.0/24")); got != netip.MustParseAddr("10.244.1.2") {
		t.Error(got)
	}
	for name, want := range map[string]string{EndpointName("abc", "winkube.4096"): "abc", "abc_flannel.4096": "", "Ethernet": "", "_winkube.4096": "", "": ""} {
		if got := containerOf(name, "winkube.4096"); got != want {
			t.Errorf("%q is of container %q, want %q", name, got, want)
		}
	}
}

func TestFits(t *testing.T) {
	o := Overlay{Name: "pods", Subnet: netip.MustParsePrefix("10.244.1.0/24")}
	for _, c := range []struct{ kind, subnet, want string }{
		{"Overlay", "10.244.1.0/24", "<nil>"},
		{"Overlay", "10.244.2.0/24", `the pods' network in HNS differs: overlay network "pods" has 10.244.2.0/24, want 10.244.1.0/24`},
		{"L2Bridge", "10.244.1.0/24", `network "pods" is of type L2Bridge, want Overlay; remove it (Get-HnsNetwork | ? Name -eq pods | Remove-HnsNetwork)`},
	} {
		if err := o.fits(c.kind, netip.MustParsePrefix(c.subnet)); fmt.Sprint(err) != c.want || errors.Is(err, ErrDiffers) != strings.Contains(c.want, "differs") {
			t.Errorf("%s with %s: %v, want %s", c.kind, c.subnet, err, c.want)
		}
	}
}

func TestSettled(t *testing.T) {
	o := Overlay{Name: "pods", Provider: netip.MustParseAddr("10.1.0.11")}
	for _, c := range []struct{ provider, router, want string }{ // what is wrong; "": nothing
		{"10.1.0.11", "00-15-5D-01-02-03", ""},
		{"10.1.0.11", "", "HNS has not finished creating the network yet"},
		{"", "00-15-5D-01-02-03", `its address is ""`},
		{"", "", "HNS has not finished creating the network yet"},
		{"10.1.0.11", "00-15-5D-01-02-03-04-05", "HNS has not finished creating the network yet"},
		{"10.0.0.5", "00-15-5D-01-02-03", "tunnels from 10.0.0.5, not from the node's address 10.1.0.11; name its adapter (--interface), and remove the network (Get-HnsNetwork | ? Name -eq pods | Remove-HnsNetwork)"},
	} {
		got, err := o.settled(c.provider, c.router)
		switch {
		case c.want == "" && (err != nil || got != [6]byte{0, 0x15, 0x5d, 1, 2, 3}):
			t.Errorf("%q, %q: %x, %v", c.provider, c.router, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%q, %q: %v, want %s", c.provider, c.router, err, c.want)
		}
	}
}

func TestChangedSubnets(t *testing.T) {
	subnet := func(prefix, provider string, mac byte) RemoteSubnet {
		return RemoteSubnet{netip.MustParsePrefix(prefix), netip.MustParseAddr(provider), [6]byte{0, 0x15, 0x5d, 0, 0, mac}}
	}
	one, two := subnet("10.244.2.0/24", "10.1.0.12", 2), subnet("10.244.3.0/24", "10.1.0.13", 3)
	moved, rebuilt := subnet("10.244.3.0/24", "10.1.0.99", 3), subnet("10.244.3.0/24", "10.1.0.13", 9)
	for name, c := range map[string]struct{ have, want, remove, add []RemoteSubnet }{
		"right":                     {[]RemoteSubnet{one, two}, []RemoteSubnet{two, one}, nil, nil},
		"nothing there":             {nil, []RemoteSubnet{two, one}, nil, []RemoteSubnet{one, two}},
		"nothing wanted":            {[]RemoteSubnet{two, one}, nil, []RemoteSubnet{one, two}, nil},
		"another address":           {[]RemoteSubnet{one, two}, []RemoteSubnet{one, moved}, []RemoteSubnet{two}, []RemoteSubnet{moved}},
		"another hardware address":  {[]RemoteSubnet{one, two}, []RemoteSubnet{one, rebuilt}, []RemoteSubnet{two}, []RemoteSubnet{rebuilt}},
		"a second one for a subnet": {[]RemoteSubnet{one, two, moved}, []RemoteSubnet{one, two}, []RemoteSubnet{moved}, nil},
	} {
		remove, add := ChangedSubnets(c.have, c.want)
		if !slices.Equal(remove, c.remove) || !slices.Equal(add, c.add) {
			t.Errorf("%s: removes %v, adds %v, want %v, %v", name, remove, add, c.remove, c.add)
		}
	}
}

// TestFitsBridge: a network of another kind, range or gateway does not fit: pods' endpoints have its gateway.
func TestFitsBridge(t *testing.T) {
	own := Bridge{Name: "pods", Subnet: netip.MustParsePrefix("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.2"), Router: netip.MustParseAddr("10.244.1.1")}
	engines := own
	engines.Router = netip.Addr{}
	for _, c := range []struct {
		b                     Bridge
		kind, subnet, gateway string
		fits                  bool
	}{
		{own, "L2Bridge", "10.244.1.0/24", "10.244.1.1", true}, {own, "L2Bridge", "10.244.1.0/24", "10.244.1.2", false},
		{engines, "L2Bridge", "10.244.1.0/24", "10.244.1.2", true}, {engines, "L2Bridge", "10.244.1.0/24", "10.244.1.1", false},
		{own, "Overlay", "10.244.1.0/24", "10.244.1.1", false}, {own, "L2Bridge", "10.244.2.0/24", "10.244.1.1", false},
	} {
		err := c.b.fits(c.kind, []netip.Prefix{netip.MustParsePrefix(c.subnet)}, []netip.Addr{netip.MustParseAddr(c.gateway)})
		if (err == nil) != c.fits || !c.fits && (!errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), "remove it")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
