package kubelet

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/admit"
	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/hostport"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/vxlan"
)

// proxyDefaults are where a proxy listens that does not report it (healthz and metrics; upstream has the same defaults).
var proxyDefaults = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:10256"), netip.MustParseAddrPort("127.0.0.1:10249")}

// reservedPorts are the ports of this node's daemons: the kubelet's as configured, and the proxy's as it reports them. The overlay network's ports are those of our VXLAN devices and,
// where another program connects the nodes, of flannel's and Cilium's on Linux.
func reservedPorts(cfg Config, reports report.FactsFile) []admit.Reserved {
	proxy := proxyDefaults
	if facts, err := reports.Read(); err == nil && len(facts.Listen) > 0 { // learn.Cluster logs the error
		proxy = facts.Listen
	}
	out := []admit.Reserved{{Holder: "overlay network", Protocol: v1.ProtocolUDP, At: netip.AddrPortFrom(netip.IPv4Unspecified(), vxlan.Port)}}
	for _, at := range proxy {
		out = append(out, admit.Reserved{Holder: "proxy", Protocol: v1.ProtocolTCP, At: at})
	}
	switch cfg.Network.Mode {
	case network.Upstream, network.External, network.CNI:
		out = append(out, admit.Reserved{Holder: "overlay network", Protocol: v1.ProtocolUDP, At: netip.AddrPortFrom(netip.IPv4Unspecified(), vxlan.LinuxPort)})
	}
	for _, text := range []string{cfg.Server.Address, cfg.Healthz} {
		if at, err := netip.ParseAddrPort(text); err == nil {
			out = append(out, admit.Reserved{Holder: "kubelet", Protocol: v1.ProtocolTCP, At: at})
		}
	}
	return out
}

// hostAddresses returns the addresses for a hostPort without hostIP, and the addresses that a hostIP may be. The proxy may add ClusterIPs to
// an interface that counts. They stay the Services': services lists those that are known.
func hostAddresses(nodeIPs []netip.Addr, services func() ([]*v1.Service, error)) (published, allowed func() ([]netip.Addr, error)) {
	without := func(read func([]netip.Addr) ([]netip.Addr, error)) func() ([]netip.Addr, error) {
		return func() ([]netip.Addr, error) {
			addrs, err := read(nodeIPs)
			return withoutClusterIPs(addrs, services), err
		}
	}
	return without(host.Doors), without(host.Own)
}

// hostDoors returns the addresses of the host at which a hostPort without hostIP is served: on Linux those that lead to other machines, as
// the engine would publish it, on Windows the node's and loopback, because others may belong to Services.
func hostDoors(cfg Config, services func() ([]*v1.Service, error)) func() ([]netip.Addr, error) {
	if cfg.Platform.OS == "windows" {
		return func() ([]netip.Addr, error) {
			return append(slices.Clone(cfg.NodeIPs), netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()), nil
		}
	}
	published, _ := hostAddresses(cfg.NodeIPs, services)
	return published
}

// withoutClusterIPs returns addrs without the ClusterIPs of Services.
func withoutClusterIPs(addrs []netip.Addr, services func() ([]*v1.Service, error)) []netip.Addr {
	all, _ := services() // of a cache
	taken := map[netip.Addr]bool{}
	for _, s := range all {
		for _, ip := range s.Spec.ClusterIPs {
			if addr, err := netip.ParseAddr(ip); err == nil {
				taken[addr] = true
			}
		}
	}
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return taken[a] })
}

// hostPorts serves the hostPorts that the engine does not publish, through the relay that serves the proxy's node ports. On the bridge of
// pods' interfaces that the kubelet makes, rules of the packet filter lead clients past the relay.
type hostPorts struct {
	*hostport.Manager
	relay *relay.Relay
}

func newHostPorts(doors func() ([]netip.Addr, error), rules *hostport.Rules, nodePort func(uint16) string, event func(namespace, name, uid, kind, reason, message string)) hostPorts {
	backend := relay.New(relay.Goroutines, relay.Config{Addresses: presentAddresses{}, Doors: doors, SessionPorts: 10, SCTPBeside: rules.Serve(), Clock: clock.RealClock{}}) // the proxy's relay may use half of the ports
	return hostPorts{hostport.New(hostport.Config{Backend: backend, Rules: rules, NodePort: nodePort, Event: event, Clock: clock.RealClock{}}), backend}
}

// sctpNodePort names the Service that has a node port of protocol SCTP; "": none has.
func sctpNodePort(services func() ([]*v1.Service, error)) func(port uint16) string {
	return func(port uint16) string {
		all, _ := services() // of a cache
		for _, s := range all {
			for i := range s.Spec.Ports {
				if p := &s.Spec.Ports[i]; p.Protocol == v1.ProtocolSCTP && p.NodePort == int32(port) {
					return s.Namespace + "/" + s.Name
				}
			}
		}
		return ""
	}
}

// iptables-restore waits up to 5 s for other writers. A hung program delays hostPorts for rulesPatience, once in rulesPause.
const (
	rulesPatience = 10 * time.Second
	rulesPause    = 30 * time.Second
)

// hostPortRules are the packet filter rules of hostPorts; nil on Windows. Without interfaces of the kubelet's they are only removed.
func hostPortRules(cfg Config, doors func() ([]netip.Addr, error)) *hostport.Rules {
	if cfg.Platform.OS == "windows" {
		return nil
	}
	return hostport.NewRules(hostport.RulesConfig{Run: command.Patient(command.New(), rulesPatience, rulesPause), Bridge: cfg.Network.PodBridge(), Doors: doors,
		Forget: hostnet.ForgetFlows})
}

// follow compares hostPorts again after ClusterIPs or node ports of a Service have come, changed or gone. It does not block.
func (h hostPorts) follow(before, now *v1.Service) {
	if before == nil || now == nil || !sameFronts(before.Spec, now.Spec) {
		h.ServicesChanged()
	}
}

// sameFronts reports whether two states of a Service have the same ClusterIPs and node ports.
func sameFronts(a, b v1.ServiceSpec) bool {
	samePort := func(a, b v1.ServicePort) bool { return a.NodePort == b.NodePort && a.Protocol == b.Protocol }
	return slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.EqualFunc(a.Ports, b.Ports, samePort)
}

// Run serves until ctx ends.
func (h hostPorts) Run(ctx context.Context) error {
	defer h.relay.Close()
	return h.Manager.Run(ctx)
}

// presentAddresses are the host's existing addresses: hostPorts add none.
type presentAddresses struct{}

func (presentAddresses) Host() ([]netip.Addr, error) { return host.Addresses() }

func (presentAddresses) HoldsPorts(netip.Addr) bool { return false }

func (presentAddresses) LeadsAnswers() bool { return false }

func (presentAddresses) Set(_ context.Context, want relay.Local) (bool, error) {
	var errs []error
	for _, addr := range want.Addresses {
		errs = append(errs, &relay.AddressError{Addr: addr, Err: errors.New("it is not an address of this node")})
	}
	return false, errors.Join(errs...)
}

// Changes reports nothing: hostport.Manager compares on a timer.
func (presentAddresses) Changes(context.Context) (<-chan struct{}, error) { return nil, nil }
