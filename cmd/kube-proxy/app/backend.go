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
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/pkg/proxy/portproxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/routes"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// The back ends, by the flags that choose them. What portproxy and hnslb cannot do is relayed.
const (
	byRelay     = "relay"     // --proxy-mode=userspace
	byPortProxy = "portproxy" // --proxy-mode=userspace --userspace-backend=portproxy
	byHNS       = "hnslb"     // --proxy-mode=kernelspace
)

// firstHNSBuild is that of Server 2019: load balancers of HNS can be listed and told apart from there on (interface version 2).
const firstHNSBuild = 17763

// setBackEnd chooses the back end.
func (o *options) setBackEnd(s *settings, facts host.Facts) error {
	windows := facts.OS == "windows"
	mode := cmp.Or(string(o.config.Mode), "userspace")
	s.config.Mode, s.backEnd = "userspace", o.userspaceBackend
	if windows && facts.WindowsBuild >= firstHNSBuild {
		s.hns.Network = cmp.Or(o.config.Winkernel.NetworkName, os.Getenv("KUBE_NETWORK"))
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
	case mode != "kernelspace":
		return fmt.Errorf("--proxy-mode=%s: want userspace, or on Windows kernelspace", mode)
	case !windows:
		s.backEnd = byRelay // see notes
		return nil
	case facts.WindowsBuild < firstHNSBuild:
		return fmt.Errorf("--proxy-mode=kernelspace: the HNS of this Windows (build %d) has no load balancers that can be managed, which needs build %d (Server 2019) or later; want --proxy-mode=userspace, which serves the same Services",
			facts.WindowsBuild, firstHNSBuild)
	}
	s.config.Mode, s.backEnd = "kernelspace", byHNS
	if s.hns.Network == "" {
		return fmt.Errorf("--proxy-mode=kernelspace: want --network-name or KUBE_NETWORK, the HNS network of the pods")
	}
	return nil
}

// setOverlay checks what an overlay of Windows takes: pods on it send to Services through the virtual switch, where they meet its load balancers and
// no socket of their host.
func (o *options) setOverlay(s *settings, facts host.Facts) error {
	switch {
	case o.cleanup: // whatever was there
	case facts.WindowsBuild < firstHNSBuild:
		return fmt.Errorf("--network-mode=overlay: the HNS of this Windows (build %d) does not support subnets of other nodes, which needs build %d (Server 2019, with the updates from KB4489899 on); want host-gateway or upstream",
			facts.WindowsBuild, firstHNSBuild)
	case o.config.Mode == "userspace":
		return fmt.Errorf("--proxy-mode=userspace: pods of a Windows overlay (--network-mode=overlay) reach Services only through HNS load balancers; want kernelspace, which is the default there")
	}
	s.hns.Network = cmp.Or(s.hns.Network, vxlan.DeviceName(true))
	return nil
}

// setHNS reads what HNS load balancers need beside the network's name; an --source-vip that is no address was refused before.
func (o *options) setHNS(s *settings) {
	s.hns.DSR = o.config.Winkernel.EnableDSR
	s.hns.SourceVIP, _ = netip.ParseAddr(o.config.Winkernel.SourceVip) // "": hnslb finds it
	s.hns.Node = func() (netip.Addr, string) {
		addrs, err := host.NodeAddress(o.config.BindAddress)
		if err != nil || len(addrs) == 0 {
			return netip.Addr{}, "" // hnslb says what overlays miss without
		}
		return addrs[0], hardwareAddress(addrs[0])
	}
}

// hardwareAddress is that of the interface that has an address, "" for none.
func hardwareAddress(addr netip.Addr) string {
	links, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, link := range links {
		list, err := link.Addrs()
		if err != nil {
			continue // it went away meanwhile
		}
		for _, one := range list {
			if n, ok := one.(*net.IPNet); ok && n.IP.Equal(addr.AsSlice()) {
				return link.HardwareAddr.String()
			}
		}
	}
	return ""
}

// system is what only Windows has; without it the fields are nil.
type system struct {
	hns      hns.Client
	watchHNS func(ctx context.Context, tell func()) error
	netsh    *netsh.Program
}

// hints are those of the host's addresses, which may be nil, and those of HNS. running gets what passes them on until ctx ends.
func (sys *system) hints(ctx context.Context, running *sync.WaitGroup, addresses <-chan struct{}) <-chan struct{} {
	merged := wake.New()
	if err := sys.watchHNS(ctx, merged.Send); err != nil {
		klog.InfoS("Cannot watch HNS; its changes are found by the periodic comparison", "reason", err.Error())
	}
	running.Go(func() {
		for {
			select {
			case <-addresses:
				merged.Send()
			case <-ctx.Done():
				return
			}
		}
	})
	return merged
}

// holdNothing has addresses hold none.
func holdNothing(ctx context.Context, addresses relay.Addresses) error {
	_, err := addresses.Set(ctx, relay.Local{})
	return err
}

// backEnd is what serves Services. Each has a relay, which its maker closes.
type backEnd struct {
	proxy.Backend
	relay *relay.Relay
}

// newBackEnd puts the chosen back end together.
func (s *settings) newBackEnd(base *kubeproxy.Base, sys system, addresses relay.Addresses) backEnd {
	config := relay.Config{Addresses: addresses, NodePorts: s.nodePorts, UDPIdle: s.udpIdle, ClientShare: s.clientShare, Warn: base.Inbox.Warn, Clock: clock.RealClock{}}
	var first proxy.Backend // it serves what it can, and the relay the rest
	var serves func(*proxy.Route) bool
	switch s.backEnd {
	case byPortProxy:
		forRules, forRelay := kubeproxy.Share(addresses)
		config.Addresses = forRelay
		first, serves = portproxy.New(portproxy.Config{Netsh: sys.netsh, Addresses: forRules, NodePorts: s.nodePorts, NoFirewall: !s.firewall}), portproxy.Serves
	case byHNS:
		balancers := s.hns
		balancers.Client = sys.hns
		first, serves = hnslb.New(balancers), hnslb.Serves
	}
	r := relay.New(newPlane(), config)
	base.Registry.MustRegister(r.Collectors()...)
	if first == nil {
		return backEnd{r, r}
	}
	return backEnd{kubeproxy.NewSplit(first, r, serves), r}
}

// noAddresses is for a portproxy that only removes: the addresses are cleaned by themselves.
type noAddresses struct{}

func (noAddresses) Set(context.Context, []netip.Addr) error { return nil }
func (noAddresses) Host() ([]netip.Addr, error)             { return nil, nil }

// firewallName is that of the rule which lets clients of other hosts reach this program.
const firewallName = "winkube kube-proxy"

// setFirewall allows clients of other hosts through Windows Firewall, or removes that rule.
func (s *settings) setFirewall(ctx context.Context, sys system) {
	if sys.netsh == nil {
		return
	}
	if err := sys.netsh.AdmitSelf(ctx, firewallName, s.firewall); err != nil {
		klog.InfoS("Cannot change Windows Firewall; clients on other hosts may be blocked", "err", err)
	}
}

// removeRules removes port proxy rules of former runs.
func (sys *system) removeRules(ctx context.Context) error {
	if sys.netsh == nil {
		return nil
	}
	return portproxy.New(portproxy.Config{Netsh: sys.netsh, Addresses: noAddresses{}}).Sync(ctx, &proxy.Table{}, nil)
}

// cleanup removes what proxies before us left in Windows, whatever their back end was. Load balancers are looked for in a network that is named.
func (s *settings) cleanup(ctx context.Context, sys system) error {
	errs := []error{sys.removeRules(ctx)}
	if sys.netsh != nil {
		errs = append(errs, sys.netsh.AdmitSelf(ctx, firewallName, false))
	}
	return errors.Join(append(errs, s.removeBalancers(ctx, sys))...)
}

// removeBalancers removes HNS load balancers of former runs, in a network that is named.
func (s *settings) removeBalancers(ctx context.Context, sys system) error {
	if sys.hns == nil || s.hns.Network == "" {
		return nil
	}
	config := s.hns
	config.Client = sys.hns
	if err := hnslb.New(config).Sync(ctx, &proxy.Table{}, nil); !errors.Is(err, hns.ErrNotFound) && !errors.Is(err, hns.ErrOld) {
		return err
	}
	return nil
}
