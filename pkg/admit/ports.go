package admit

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// hostPort is a host port that a pod uses.
type hostPort struct {
	ip       netip.Addr // invalid: all addresses
	protocol v1.Protocol
	port     int32
}

func (p hostPort) String() string {
	if !p.ip.IsValid() {
		return fmt.Sprintf("port %d/%s", p.port, p.protocol)
	}
	return fmt.Sprintf("port %s/%s", netip.AddrPortFrom(p.ip, uint16(p.port)), p.protocol)
}

func (p hostPort) conflicts(other hostPort) bool {
	return p.port == other.port && p.protocol == other.protocol && (!p.ip.IsValid() || !other.ip.IsValid() || p.ip == other.ip)
}

// hostPorts lists the host ports of the containers that run as long as the pod: apps and sidecars. With hostNetwork every container port is
// a host port. The API server writes that into the spec, but for static pods nothing does.
func hostPorts(p *v1.Pod) []hostPort {
	var out []hostPort
	add := func(c *v1.Container) {
		for _, port := range c.Ports {
			number := port.HostPort
			if number == 0 && p.Spec.HostNetwork {
				number = port.ContainerPort
			}
			if number <= 0 {
				continue
			}
			hp := hostPort{protocol: port.Protocol, port: number}
			if hp.protocol == "" {
				hp.protocol = v1.ProtocolTCP
			}
			if ip, err := netip.ParseAddr(port.HostIP); err == nil && !ip.Unmap().IsUnspecified() {
				hp.ip = ip.Unmap()
			}
			out = append(out, hp)
		}
	}
	for _, c := range podspec.PortContainers(p) {
		add(c)
	}
	return out
}

// Reserved is a port of one of the node's daemons, or of its overlay network.
type Reserved struct {
	Holder   string // kubelet, proxy or overlay network
	Protocol v1.Protocol
	At       netip.AddrPort
}

// reserved finds a hostPort of p that belongs to a daemon or the overlay network. The engine's rules for hostPorts take precedence over the daemons' sockets:
// after a restart of the kubelet, its clients would reach the pod instead. A pod with hostNetwork cannot take a port that is in use, and
// may be such a daemon itself.
func (a *Admitter) reserved(p *v1.Pod, ports []hostPort) (port hostPort, holder string) {
	if p.Spec.HostNetwork || len(ports) == 0 || a.cfg.Reserved == nil {
		return hostPort{}, ""
	}
	for _, r := range a.cfg.Reserved() {
		own := hostPort{protocol: r.Protocol, port: int32(r.At.Port())}
		if addr := r.At.Addr().Unmap(); addr.IsValid() && !addr.IsUnspecified() {
			own.ip = addr
		}
		for _, port := range ports {
			if own.port != 0 && port.conflicts(own) {
				return port, r.Holder
			}
		}
	}
	return hostPort{}, ""
}
