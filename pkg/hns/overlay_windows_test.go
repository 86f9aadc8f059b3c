package hns

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
)

// TestOverlay: the network is created once and has its tunnel end; routes to other hosts are added and removed; a pod's
// endpoint is connected, found by its container, and removed. The simulated host's address is 192.168.1.3, its one
// running container is winkube-test.
func TestOverlay(t *testing.T) {
	if _, err := hcn.GetGlobals(); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	o := Overlay{Name: "overlay-test", Subnet: netip.MustParsePrefix("10.244.5.0/24"), Gateway: netip.MustParseAddr("10.244.5.1"), VNI: 4096,
		Provider: netip.MustParseAddr("192.168.1.3"), Keep: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	router, err := MakeOverlay(o)
	if err != nil || router == [6]byte{} {
		t.Fatalf("%x, %v", router, err)
	}
	defer func() {
		for range 2 {
			if err := RemoveOverlay(o.Name); err != nil {
				t.Error(err)
			}
		}
		if _, err := RemoteSubnets(o.Name); !errors.Is(err, ErrNotFound) {
			t.Errorf("no network: %v", err)
		}
	}()
	if again, err := MakeOverlay(o); err != nil || again != router {
		t.Errorf("%x again is %x: %v", router, again, err)
	}
	other := o
	other.Subnet = netip.MustParsePrefix("10.244.6.0/24")
	if _, err := MakeOverlay(other); !errors.Is(err, ErrDiffers) {
		t.Errorf("another range: %v", err)
	}
	other = o
	other.Provider = netip.MustParseAddr("192.168.1.4")
	if _, err := MakeOverlay(other); err == nil || !errors.Is(err, ErrElsewhere) {
		t.Errorf("another address: %v", err)
	}
	subnetsOf(t, o)
	endpointOf(t, o)
}

func subnetsOf(t *testing.T, o Overlay) {
	one := RemoteSubnet{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParseAddr("192.168.1.2"), [6]byte{0x0e, 0x2a, 10, 244, 2, 0}}
	two := RemoteSubnet{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParseAddr("192.168.1.7"), [6]byte{0, 0x15, 0x5d, 1, 2, 3}}
	moved := two
	moved.Provider = netip.MustParseAddr("192.168.1.8")
	for _, step := range []struct{ remove, add, want []RemoteSubnet }{
		{nil, []RemoteSubnet{one, two}, []RemoteSubnet{one, two}}, {[]RemoteSubnet{two}, []RemoteSubnet{moved}, []RemoteSubnet{one, moved}},
		{[]RemoteSubnet{two}, nil, []RemoteSubnet{one, moved}}, {[]RemoteSubnet{one, moved}, nil, nil},
	} {
		if err := ChangeSubnets(o.Name, o.VNI, step.remove, step.add); err != nil {
			t.Error(err)
		}
		if got, err := RemoteSubnets(o.Name); err != nil || !slices.Equal(got, step.want) {
			t.Errorf("%v, %v, want %v", got, err, step.want)
		}
	}
}

func endpointOf(t *testing.T, o Overlay) {
	e := PodEndpoint{Container: "winkube-test", Addr: netip.MustParseAddr("10.244.5.3"), DNS: []string{"10.96.0.10"}, Searches: []string{"svc.cluster.local", "cluster.local"}}
	id, err := MakeEndpoint(o.Pods(), e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := MakeEndpoint(o.Pods(), e); err == nil {
		t.Error("an address was given twice")
	}
	if err := AttachEndpoint(id, "gone"); err == nil {
		t.Error("a container that does not run was connected")
	}
	for range 2 {
		if err := AttachEndpoint(id, "winkube-test"); err != nil {
			t.Error(err)
		}
	}
	list, err := PodEndpoints(o.Name)
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Container != e.Container || list[0].Addr != e.Addr || !slices.Equal(list[0].Attached, []string{"winkube-test"}) {
		t.Errorf("%+v, %v", list, err)
	}
	made, err := hcsshim.GetHNSEndpointByID(id.String())
	if err != nil || made.MacAddress != "0E-2A-0A-F4-05-03" || made.DNSServerList != "10.96.0.10" || made.DNSSuffix != "svc.cluster.local,cluster.local" || len(made.Policies) != 3 {
		t.Errorf("%+v, %v", made, err)
	}
	for range 2 {
		if err := RemoveEndpoint(list[0]); err != nil {
			t.Error(err)
		}
	}
}
