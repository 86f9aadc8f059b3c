package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/go-connections/nat"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// publish makes the engine forward the pod's hostPorts and records them in a label of the container; the engine reports which of them it forwards. On
// Windows it only records them: transparent and l2bridge networks have no port mappings (although moby libnetwork/drivers/windows passes them to
// HNS), and those of nat do not answer the host itself.
func publish(out *Creation, p *v1.Pod, t Target) error {
	ports, err := HostPorts(p)
	if err != nil || len(ports) == 0 {
		return err
	}
	if err := checkHostIPs(p, t.HostIPs); err != nil {
		return err
	}
	out.Config.Labels[identity.LabelHostPorts] = identity.FormatHostPorts(ports)
	if t.Platform.OS == "windows" {
		return nil
	}
	bindings, exposed := nat.PortMap{}, nat.PortSet{}
	for _, port := range ports {
		inner := natPort(port)
		for _, at := range bindTo(port.IP, t.HostAddresses) {
			bindings[inner] = append(bindings[inner], nat.PortBinding{HostIP: at, HostPort: strconv.Itoa(int(port.Port))})
		}
		exposed[inner] = struct{}{}
	}
	out.HostConfig.PortBindings, out.Config.ExposedPorts = bindings, exposed
	return nil
}

// checkHostIPs refuses a hostIP that is not the host's own. The engine would accept any, and its rules come first: with the address of a Service, the
// pod would receive the Service's connections. The check runs each time the pod's network is created, since the host may get the address later.
func checkHostIPs(p *v1.Pod, own []netip.Addr) error {
	for _, c := range podspec.PortContainers(p) {
		for _, port := range c.Ports {
			addr, err := netip.ParseAddr(port.HostIP)
			if err != nil || port.HostPort == 0 || len(own) == 0 {
				continue
			}
			if addr = addr.Unmap().WithZone(""); addr.IsUnspecified() || addr.IsLoopback() || slices.Contains(own, addr) {
				continue
			}
			var have []string
			for _, a := range own {
				if !a.IsLoopback() && a.Is4() == addr.Is4() && !a.IsLinkLocalUnicast() {
					have = append(have, a.String())
				}
			}
			if len(have) == 0 {
				have = []string{"none of that family"}
			}
			return fmt.Errorf("container %s: ports: hostIP %s of hostPort %d: this node does not have that address (addresses of Services do not count); want one of the node's (%s), a loopback address, or no hostIP",
				c.Name, port.HostIP, port.HostPort, strings.Join(have, ", "))
		}
	}
	return nil
}

// bindTo returns the addresses at which a hostPort is published, as the engine expects them. The engine's "all addresses" would also cover every
// service address that is local to this host, so that no Service could use the port there. So without a hostIP bindTo returns the host's IPv4
// addresses. The agent handles IPv6 (see Unpublished), since engines differ there.
func bindTo(wanted netip.Addr, host []netip.Addr) (out []string) {
	if wanted.IsValid() && wanted != netip.IPv4Unspecified() {
		return []string{wanted.String()}
	}
	for _, addr := range host {
		if addr.Is4() {
			out = append(out, addr.String())
		}
	}
	switch {
	case len(out) > 0:
		return out
	case wanted.IsValid():
		return []string{wanted.String()}
	}
	return []string{""}
}

func natPort(p pod.HostPort) nat.Port {
	return nat.Port(fmt.Sprintf("%d/%s", p.ContainerPort, strings.ToLower(string(p.Protocol))))
}

// HostPorts lists the pod's hostPorts in order, without duplicates.
func HostPorts(p *v1.Pod) (out []pod.HostPort, err error) {
	for _, c := range podspec.PortContainers(p) {
		for _, port := range c.Ports {
			if port.HostPort == 0 {
				continue
			}
			one := pod.HostPort{Port: uint16(port.HostPort), Protocol: cmp.Or(port.Protocol, v1.ProtocolTCP), ContainerPort: uint16(port.ContainerPort)}
			if port.HostIP != "" {
				if one.IP, err = netip.ParseAddr(port.HostIP); err != nil {
					return nil, fmt.Errorf("container %s: ports: hostIP %q: want an IP address", c.Name, port.HostIP)
				}
				one.IP = one.IP.Unmap()
			}
			if !slices.Contains(out, one) {
				out = append(out, one)
			}
		}
	}
	return out, nil
}

// Unpublished lists the hostPorts of a running container that the engine does not forward, because the container's network has no port mappings, or
// none in one family. It is pure.
func Unpublished(in container.InspectResponse) (out []pod.HostPort) {
	text := in.Config.Labels[identity.LabelHostPorts]
	if text == "" || !in.State.Running {
		return nil
	}
	for _, p := range identity.ParseHostPorts(text) {
		v4, v6, exact := published(in, p)
		switch {
		case exact, p.IP.IsValid() && p.IP.IsUnspecified() && (p.IP.Is4() && v4 || p.IP.Is6() && v6), !p.IP.IsValid() && v4 && v6:
			continue
		case !p.IP.IsValid() && v4:
			p.IP = netip.IPv6Unspecified()
		case !p.IP.IsValid() && v6:
			p.IP = netip.IPv4Unspecified()
		}
		out = append(out, p)
	}
	return out
}

// published says whether the engine forwards p from all addresses of a family, and from p's own.
func published(in container.InspectResponse, p pod.HostPort) (v4, v6, exact bool) {
	if in.NetworkSettings == nil {
		return false, false, false
	}
	for _, b := range in.NetworkSettings.Ports[natPort(p)] {
		if b.HostPort != strconv.Itoa(int(p.Port)) {
			continue
		}
		addr, err := netip.ParseAddr(b.HostIP)
		v4 = v4 || err != nil || addr.Is4() && (!p.IP.IsValid() || p.IP.IsUnspecified()) // before API 1.22 "" means all; see bindTo
		v6 = v6 || addr == netip.IPv6Unspecified()
		exact = exact || p.IP.IsValid() && addr == p.IP
	}
	return v4, v6, exact
}
