package network_test

import (
	"net/netip"
	"testing"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
)

// TestUnchosenRange: an engine's network with the range 0.0.0.0/0 has none that overlaps with pods'.
func TestUnchosenRange(t *testing.T) {
	nat := pod.EngineNetwork{Name: "nat", Driver: "nat", Subnets: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	other := pod.EngineNetwork{Name: "other", Driver: "nat", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	windows := pod.Platform{OS: "windows"}
	got := network.Overlaps(network.State{}, netip.MustParsePrefix("10.244.1.0/24"), []pod.EngineNetwork{nat, other}, network.Surroundings{}, windows)
	if len(got) != 1 || got[0].Remedy != "docker network rm other" {
		t.Errorf("%+v", got)
	}
}
