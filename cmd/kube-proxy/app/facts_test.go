package app

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/routes"
)

// TestSharedFacts: the facts from routes and Services are in one file, with as few ranges as possible, which is removed
// when nothing is known.
func TestSharedFacts(t *testing.T) {
	p := netip.MustParsePrefix
	file := report.FactsFile(filepath.Join(t.TempDir(), "facts"))
	s := &sharedFacts{Facts: routes.NewFacts(), file: file}
	s.setPods([]netip.Prefix{p("10.244.0.0/24"), p("10.244.1.0/24")})
	s.SetServices([]netip.Prefix{p("10.96.0.0/12")})
	got, err := file.Read()
	if err != nil || !slices.Equal(got.Services, []netip.Prefix{p("10.96.0.0/12")}) || !slices.Equal(got.Pods, []netip.Prefix{p("10.244.0.0/23")}) {
		t.Errorf("%+v, %v", got, err)
	}
	s.setPods(nil)
	s.SetServices(nil)
	if got, err := file.Read(); err != nil || len(got.Services)+len(got.Pods) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestFactsOfRestart: the previous proxy's file stays until this one has read the ranges of Services, whatever it knows
// of routes.
func TestFactsOfRestart(t *testing.T) {
	services, pods := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}
	file := report.FactsFile(filepath.Join(t.TempDir(), "facts"))
	before := &sharedFacts{Facts: routes.NewFacts(), file: file}
	before.SetServices(services)
	before.setPods(pods)
	now := &sharedFacts{Facts: routes.NewFacts(), file: file}
	now.setPods(nil)
	if got, err := file.Read(); err != nil || !slices.Equal(got.Services, services) || !slices.Equal(got.Pods, pods) {
		t.Errorf("before the ranges are read: %+v, %v", got, err)
	}
	now.setPods(pods)
	now.SetServices(nil) // ServiceCIDRs can no longer be read
	if got, err := file.Read(); err != nil || len(got.Services) > 0 || !slices.Equal(got.Pods, pods) {
		t.Errorf("afterwards: %+v, %v", got, err)
	}
}

// TestFactsOfBalancers: the network with the proxy's load balancers is reported before it makes any, and stays while
// other facts change. A proxy that makes none says so.
func TestFactsOfBalancers(t *testing.T) {
	file := report.FactsFile(filepath.Join(t.TempDir(), "facts"))
	for _, network := range []string{"cbr0", ""} {
		s := newSharedFacts(false, network)
		s.file = file
		for _, services := range [][]netip.Prefix{nil, {netip.MustParsePrefix("10.96.0.0/12")}, nil} {
			s.SetServices(services)
			if got, err := file.Read(); err != nil || got.Balancers != network || !slices.Equal(got.Services, services) {
				t.Errorf("%q: %+v, %v", network, got, err)
			}
		}
	}
}
