package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeproxy"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/portblocks"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/connect"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/pkg/proxy/portproxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/routes"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// The back ends and their flags. The relay serves what portproxy and hnslb cannot.
const (
	byRelay     = "relay"     // --proxy-mode=userspace
	byPortProxy = "portproxy" // --proxy-mode=userspace --userspace-backend=portproxy
	byHNS       = "hnslb"     // --proxy-mode=kernelspace
	byConnect   = "connect"   // --proxy-mode=connect; with a relay besides
)

// firstHNSBuild is Server 2019, the first Windows whose HNS load balancers can be listed and distinguished (API version
// 2).
const firstHNSBuild = 17763

// setBackEnd chooses the back end.
func (o *options) setBackEnd(s *settings, facts host.Facts) error {
	windows := facts.OS == "windows"
	s.backEndFrom = o.why(facts, s.mode)
	if o.config.Mode == "auto" {
		o.config.Mode = ""
		if !windows {
			o.config.Mode = "connect"
		}
	}
	mode := cmp.Or(string(o.config.Mode), "userspace")
	s.config.Mode, s.backEnd = "userspace", o.userspaceBackend
	if windows && facts.WindowsBuild >= firstHNSBuild {
		s.hns.Network, s.hns.Build = cmp.Or(o.config.Winkernel.NetworkName, os.Getenv("KUBE_NETWORK")), facts.WindowsBuild
		if s.mode == routes.HostGateway || s.mode == routes.Upstream { // the kubelet makes the network
			s.hns.Network = cmp.Or(s.hns.Network, hns.KubeletsNetwork)
		}
	}
	if windows && s.mode == routes.Overlay {
		mode = cmp.Or(string(o.config.Mode), "kernelspace")
		if err := o.setOverlay(s, facts); err != nil {
			return err
		}
	}
	switch {
	case s.backEnd != byRelay && s.backEnd != byPortProxy:
		return fmt.Errorf("--userspace-backend=%s: want relay or portproxy", s.backEnd)
	case s.backEnd == byPortProxy && !windows:
		return fmt.Errorf("--userspace-backend=portproxy: only Windows has port proxy rules; want relay")
	case mode == "userspace":
		return nil
	case mode == "connect" && !windows:
		s.config.Mode, s.backEnd = "connect", byConnect
		return nil
	case mode != "kernelspace":
		return fmt.Errorf("--proxy-mode=%s: want auto, userspace, on Linux connect, or on Windows kernelspace", mode)
	case !windows:
		s.backEnd = byRelay // notes explains this to the user
		return nil
	case facts.WindowsBuild < firstHNSBuild:
		return fmt.Errorf("--proxy-mode=kernelspace: the HNS of this Windows (build %d) has no load balancers that can be managed, which needs build %d (Server 2019) or later; want --proxy-mode=userspace, which serves the same Services",
			facts.WindowsBuild, firstHNSBuild)
	}
	s.config.Mode, s.backEnd = "kernelspace", byHNS
	if s.hns.Network == "" {
		return fmt.Errorf("--proxy-mode=kernelspace: want --network-name or KUBE_NETWORK, the HNS network of the pods, whose name another program chooses with --network-mode=%s", s.mode)
	}
	return nil
}

// why returns the reason for the back end, for doctor.
func (o *options) why(facts host.Facts, mode routes.Mode) string {
	system := "Linux"
	if facts.OS == "windows" {
		system = fmt.Sprintf("build %d", facts.WindowsBuild)
	}
	switch chosen := o.config.Mode; {
	case chosen == "auto":
		return "--proxy-mode=auto, on " + system
	case facts.OS != "windows" && chosen == "kernelspace":
		return "the default: only Windows has --proxy-mode=kernelspace"
	case chosen != "" && chosen != "userspace":
		return "--proxy-mode=" + string(chosen)
	case o.userspaceBackend != byRelay:
		return "--userspace-backend=" + o.userspaceBackend
	case chosen != "":
		return "--proxy-mode=" + string(chosen)
	case facts.OS == "windows" && mode == routes.Overlay:
		return "the default of --network-mode=overlay on Windows"
	}
	return "the default of " + system
}

// facts returns what the configuration says of this proxy; on holds the addresses of Services.
func (s *settings) facts(on relay.Addresses) report.Facts {
	return report.Facts{Balancers: s.ownBalancers(), Serving: s.served(on), Listen: s.listens()}
}

// served returns how this proxy serves Services, for doctor.
func (s *settings) served(on relay.Addresses) report.Serving {
	out := report.Serving{BackEnd: s.backEnd, BackEndFrom: s.backEndFrom, Interface: s.serviceInterface, InterfaceFrom: envInterface}
	if out.Interface == "" {
		out.Interface, out.InterfaceFrom = addresses.OwnInterface, "the interface that the proxy makes"
		if own, ok := on.(*onSwitch); ok {
			out.Interface = own.name
		}
	}
	if s.backEnd == byHNS {
		out.DSR, out.DSRFrom = "off", "the default"
		if s.hns.DSR {
			out.DSR, out.DSRFrom = "on", "--enable-dsr"
		}
	}
	return out
}

// setOverlay checks the requirements of a Windows overlay: its pods send to Services through the virtual switch, which
// has load balancers, but no sockets of the host.
func (o *options) setOverlay(s *settings, facts host.Facts) error {
	switch {
	case o.cleanup: // removes any mode
	case facts.WindowsBuild < firstHNSBuild:
		return fmt.Errorf("--network-mode=overlay: the HNS of this Windows (build %d) does not support subnets of other nodes, which needs build %d (Server 2019, with the updates from KB4489899 on); want host-gateway or upstream",
			facts.WindowsBuild, firstHNSBuild)
	case o.config.Mode == "userspace":
		return fmt.Errorf("--proxy-mode=userspace: pods of a Windows overlay (--network-mode=overlay) reach Services only through HNS load balancers; want kernelspace, which is the default there")
	}
	s.hns.Network, s.hns.Overlay = cmp.Or(s.hns.Network, vxlan.DeviceName(true)), true
	return nil
}

// setHNS sets the options of HNS load balancers besides the network's name; an invalid --source-vip was refused
// earlier.
func (o *options) setHNS(s *settings) {
	s.hns.DSR = o.config.Winkernel.EnableDSR
	s.hns.SourceVIP, _ = netip.ParseAddr(o.config.Winkernel.SourceVip) // "": hnslb finds it itself
	s.hns.Node = func() (netip.Addr, string) {
		addrs, err := host.NodeAddress(o.config.BindAddress)
		if err != nil || len(addrs) == 0 {
			return netip.Addr{}, "" // hnslb reports what overlays lack without it
		}
		return addrs[0], hardwareAddress(addrs[0])
	}
}

// hardwareAddress returns the hardware address of the interface with an address; "": none.
func hardwareAddress(addr netip.Addr) string {
	links, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, link := range links {
		list, err := link.Addrs()
		if err != nil {
			continue // the interface has gone
		}
		for _, one := range list {
			if n, ok := one.(*net.IPNet); ok && n.IP.Equal(addr.AsSlice()) {
				return link.HardwareAddr.String()
			}
		}
	}
	return ""
}

// system holds what exists only on Windows; elsewhere the fields are nil.
type system struct {
	hns      hns.Client
	watchHNS func(ctx context.Context, tell func()) error
	netsh    *netsh.Program
}

// joinHints forwards hints to merged until ctx ends.
func joinHints(ctx context.Context, running *sync.WaitGroup, merged wake.Signal, hints <-chan struct{}) {
	running.Go(func() {
		for {
			select {
			case <-hints:
				merged.Send()
			case <-ctx.Done():
				return
			}
		}
	})
}

// holdNothing removes all service addresses.
func holdNothing(ctx context.Context, addresses relay.Addresses) error {
	_, err := addresses.Set(ctx, relay.Local{})
	return err
}

// backEnd serves Services. Each one includes a relay.
type backEnd struct {
	proxy.Backend
	close func()
}

// newBackEnd assembles the chosen back end.
func (s *settings) newBackEnd(base *kubeproxy.Base, sys system, addresses relay.Addresses) backEnd {
	if sys.netsh != nil && s.firewall {
		addresses = newWall(addresses, sys.netsh)
	}
	config := relay.Config{Addresses: addresses, NodePorts: s.nodePorts, UDPIdle: s.udpIdle, ClientShare: s.clientShare, Warn: base.Inbox.Warn, Clock: clock.RealClock{}}
	var first proxy.Backend // serves what it can; the relay serves the rest
	var serves func(*proxy.Route) bool
	switch s.backEnd {
	case byPortProxy:
		forRules, forRelay := kubeproxy.Share(addresses)
		config.Addresses = forRelay
		first, serves = portproxy.New(portproxy.Config{Netsh: sys.netsh, Addresses: forRules, NodePorts: s.nodePorts, NoFirewall: !s.firewall}), portproxy.Serves
	case byHNS:
		balancers := s.hns
		balancers.Client, balancers.Ports = sys.hns, sys.dynamicPorts
		balancer := hnslb.New(balancers)
		base.Registry.MustRegister(balancer.Collectors()...)
		first, serves = balancer, balancer.Serves
	}
	sctp := newPackets(addresses, s.nodePorts)
	config.SCTPBeside = sctp != nil
	r := relay.New(newPlane(), config)
	base.Registry.MustRegister(r.Collectors()...)
	out := backEnd{r, r.Close}
	switch {
	case s.backEnd == byConnect:
		c := connect.New(connectKernel(s.connectCgroup), connect.Limits{})
		base.Registry.MustRegister(c.Collectors()...)
		out = backEnd{kubeproxy.Beside{First: c, Rest: r}, func() { c.Close(); r.Close() }}
	case first != nil:
		out.Backend = kubeproxy.NewSplit(first, r, serves)
	}
	if sctp != nil { // last, because a program that hangs delays it
		out.Backend = kubeproxy.Beside{First: out.Backend, Rest: sctp}
	}
	return out
}

// dynamicPorts reads the dynamic TCP ports and the excluded ranges from netsh.
func (sys *system) dynamicPorts(ctx context.Context) (portblocks.Ports, error) {
	output, failed := sys.netsh.Script(ctx, []string{portblocks.ListDynamic, portblocks.ListExcluded})
	ports, err := portblocks.ParseDynamic(output)
	if err != nil {
		return ports, errors.Join(err, failed)
	}
	ports.Excluded = portblocks.ParseExcluded(output)
	return ports, nil
}

// noAddresses is for a portproxy that only removes rules: the addresses are removed separately.
type noAddresses struct{}

func (noAddresses) Set(context.Context, []netip.Addr) ([]netip.Addr, error) { return nil, nil }
func (noAddresses) Host() ([]netip.Addr, error)                             { return nil, nil }

// firewallName is the name of the rule that lets clients on other hosts reach this program.
const firewallName = "winkube kube-proxy"

// setFirewall allows clients on other hosts through Windows Firewall, or removes that rule.
func (s *settings) setFirewall(ctx context.Context, sys system) {
	if sys.netsh == nil {
		return
	}
	if err := sys.netsh.AdmitSelf(ctx, firewallName, s.firewall); err != nil {
		klog.InfoS("Cannot change Windows Firewall; clients on other hosts may be blocked", "err", err)
	}
	if !s.firewall {
		sys.removeWall(ctx)
	}
}

// removeWall removes the rules at service addresses. If the firewall does not respond, its rules have no effect.
func (sys *system) removeWall(ctx context.Context) {
	if err := sys.netsh.Admit(ctx, wallName, ""); err != nil {
		klog.InfoS("Cannot remove rules of Windows Firewall", "name", wallName, "err", err)
	}
}

// removeRules removes port proxy rules of previous runs.
func (sys *system) removeRules(ctx context.Context) error {
	if sys.netsh == nil {
		return nil
	}
	return portproxy.New(portproxy.Config{Netsh: sys.netsh, Addresses: noAddresses{}}).Sync(ctx, &proxy.Table{}, nil)
}

// cleanup removes what previous proxies left in Windows, whatever their back end was. Load balancers are removed only
// if their network is known.
func (s *settings) cleanup(ctx context.Context, sys system) error {
	errs := []error{sys.removeRules(ctx)}
	if sys.netsh != nil {
		errs = append(errs, sys.netsh.AdmitSelf(ctx, firewallName, false), sys.netsh.Admit(ctx, wallName, ""))
	}
	return errors.Join(append(errs, s.removeBalancers(ctx, sys))...)
}

// removeBalancers removes HNS load balancers of previous runs if their network is known. A host without HNS
// has none.
func (s *settings) removeBalancers(ctx context.Context, sys system) error {
	if sys.hns == nil || s.hns.Network == "" {
		return nil
	}
	config := s.hns
	config.Client = sys.hns
	err := hnslb.New(config).Sync(ctx, &proxy.Table{}, nil)
	for _, none := range []error{hns.ErrNotFound, hns.ErrOld, hns.ErrNoContainers} {
		if errors.Is(err, none) {
			return nil
		}
	}
	return err
}
