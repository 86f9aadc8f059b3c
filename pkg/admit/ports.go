package admit

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// hostPort is a port of the host that a pod takes.
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

// hostPorts lists the host's ports of the containers that run as long as the pod: apps and restartable init containers. With hostNetwork
// each port of a container is one of the host's (the API server writes that into the spec; for static pods nobody does).
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
			if ip, err := netip.ParseAddr(port.HostIP); err == nil && !ip.IsUnspecified() {
				hp.ip = ip.Unmap()
			}
			out = append(out, hp)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		if policy := p.Spec.InitContainers[i].RestartPolicy; policy != nil && *policy == v1.ContainerRestartPolicyAlways {
			add(&p.Spec.InitContainers[i])
		}
	}
	return out
}
