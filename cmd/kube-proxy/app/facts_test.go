package app

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/routes"
)

// TestSharedFacts: the facts from routes and Services are in one file, with as few ranges as possible, which is removed
// when nothing is known.
func TestSharedFacts(t *testing.T) {
	p := netip.MustParsePrefix
	file := report.FactsFile(filepath.Join(t.TempDir(), "facts"))
	s := &sharedFacts{Facts: routes.NewFacts(), file: file}
	setPods := s.podSetter(routes.Upstream)
	setPods([]netip.Prefix{p("10.244.0.0/24"), p("10.244.1.0/24")})
	s.SetServices([]netip.Prefix{p("10.96.0.0/12")})
	got, err := file.Read()
	if err != nil || !slices.Equal(got.Services, []netip.Prefix{p("10.96.0.0/12")}) || !slices.Equal(got.Pods, []netip.Prefix{p("10.244.0.0/23")}) {
		t.Errorf("%+v, %v", got, err)
	}
	setPods(nil)
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
	before.podSetter(routes.Upstream)(pods)
	now := &sharedFacts{Facts: routes.NewFacts(), file: file}
	setPods := now.podSetter(routes.Upstream)
	setPods(nil)
	if got, err := file.Read(); err != nil || !slices.Equal(got.Services, services) || !slices.Equal(got.Pods, pods) {
		t.Errorf("before the ranges are read: %+v, %v", got, err)
	}
	setPods(pods)
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
		s := newSharedFacts(false, report.Facts{Balancers: network})
		s.file = file
		for _, services := range [][]netip.Prefix{nil, {netip.MustParsePrefix("10.96.0.0/12")}, nil} {
			s.SetServices(services)
			if got, err := file.Read(); err != nil || got.Balancers != network || !slices.Equal(got.Services, services) {
				t.Errorf("%q: %+v, %v", network, got, err)
			}
		}
	}
}

// TestFactsOfPorts: the kubelet learns where the proxy listens, which follows its flags; a server that is off is not
// among them.
func TestFactsOfPorts(t *testing.T) {
	for args, want := range map[string]string{
		"": "[0.0.0.0:10256 127.0.0.1:10249]",
		"--healthz-bind-address=192.0.2.7:20256 --metrics-bind-address=127.0.0.1:20249": "[192.0.2.7:20256 127.0.0.1:20249]",
		"--healthz-bind-address=": "[127.0.0.1:10249]",
	} {
		o, _ := mustParse(t, strings.Fields("--master=x "+args)...)
		s, err := o.settings(linux)
		if err != nil {
			t.Fatal(err)
		}
		shared := newSharedFacts(false, s.facts(nil))
		shared.file = report.FactsFile(filepath.Join(t.TempDir(), "facts"))
		shared.SetServices(nil)
		if got, err := shared.file.Read(); err != nil || fmt.Sprint(got.Listen) != want {
			t.Errorf("%q: %v, %v; want %s", args, got.Listen, err, want)
		}
	}
}

// TestServing: doctor learns what serves Services and why, and whether the ranges of pods are all there are.
func TestServing(t *testing.T) {
	t.Setenv(envInterface, "")
	t.Setenv("KUBE_NETWORK", "")
	server2016 := windows
	server2016.WindowsBuild = 14393
	named := &onSwitch{name: "vEthernet (KubeProxySwitch)"}
	const ours = "the interface that the proxy makes"
	for _, c := range []struct {
		args  string
		facts host.Facts
		want  report.Serving
	}{
		{"", windows, report.Serving{BackEnd: byRelay, BackEndFrom: "the default of build 20348"}},
		{"--userspace-backend=portproxy", server2016, report.Serving{BackEnd: byPortProxy, BackEndFrom: "--userspace-backend=portproxy"}},
		{"--proxy-mode=kernelspace", windows, report.Serving{BackEnd: byHNS, BackEndFrom: "--proxy-mode=kernelspace", DSR: "off", DSRFrom: "the default"}},
		{"--proxy-mode=kernelspace --enable-dsr", windows, report.Serving{BackEnd: byHNS, BackEndFrom: "--proxy-mode=kernelspace", DSR: "on", DSRFrom: "--enable-dsr"}},
		{"--network-mode=overlay", windows, report.Serving{BackEnd: byHNS, BackEndFrom: "the default of --network-mode=overlay on Windows", DSR: "off", DSRFrom: "the default"}},
		{"--proxy-mode=auto", windows, report.Serving{BackEnd: byRelay, BackEndFrom: "--proxy-mode=auto, on build 20348"}},
		{"--proxy-mode=kernelspace", linux, report.Serving{BackEnd: byRelay, BackEndFrom: "the default: only Windows has --proxy-mode=kernelspace"}},
		{"--proxy-mode=auto", linux, report.Serving{BackEnd: byConnect, BackEndFrom: "--proxy-mode=auto, on Linux"}},
		{"", linux, report.Serving{BackEnd: byRelay, BackEndFrom: "the default of Linux"}},
	} {
		o, _ := mustParse(t, strings.Fields("--master=x "+c.args)...)
		s, err := o.settings(c.facts)
		if err != nil {
			t.Fatal(err)
		}
		c.want.Interface, c.want.InterfaceFrom = named.name, ours
		if got := s.served(named); got != c.want {
			t.Errorf("%s on %s: %+v, want %+v", c.args, c.facts.OS, got, c.want)
		}
	}
	if got := (&settings{serviceInterface: "lo"}).served(nil); got.Interface != "lo" || got.InterfaceFrom != envInterface {
		t.Errorf("%+v", got)
	}
	file := report.FactsFile(filepath.Join(t.TempDir(), "facts"))
	facts := &sharedFacts{Facts: routes.NewFacts(), file: file, known: report.Facts{Serving: report.Serving{BackEnd: byRelay}}}
	facts.SetServices(nil)
	for mode, all := range map[routes.Mode]bool{routes.HostGateway: true, routes.Overlay: true, routes.Upstream: false} {
		facts.podSetter(mode)(nil)
		if got, err := file.Read(); err != nil || got.Routes != all || got.Serving.BackEnd != byRelay {
			t.Errorf("%s: %+v, %v", mode, got, err)
		}
	}
}
