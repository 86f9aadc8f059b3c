package docker

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/go-connections/nat"
	v1 "k8s.io/api/core/v1"
)

func TestUnpublished(t *testing.T) {
	inspect := func(label string, ports nat.PortMap) container.InspectResponse {
		settings := &container.NetworkSettings{}
		settings.Ports = ports
		return container.InspectResponse{
			ContainerJSONBase: &container.ContainerJSONBase{State: &container.State{Running: true}},
			Config:            &container.Config{Labels: map[string]string{LabelHostPorts: label}},
			NetworkSettings:   settings,
		}
	}
	bound := func(port string, ips ...string) nat.PortMap {
		out := nat.PortMap{"81/tcp": {{HostIP: "0.0.0.0", HostPort: "81"}}}
		for _, ip := range ips {
			out["80/tcp"] = append(out["80/tcp"], nat.PortBinding{HostIP: ip, HostPort: port})
		}
		return out
	}
	for _, test := range []struct {
		name  string
		label string
		ports nat.PortMap
		want  string
	}{
		{"none asked for", "", nil, ""},
		{"a network without port mappings", "8080=80/TCP,53=53/UDP", nat.PortMap{"80/tcp": nil}, "8080=80/TCP,53=53/UDP"},
		{"both families", "8080=80/TCP", bound("8080", "0.0.0.0", "::"), ""},
		{"IPv4 only", "8080=80/TCP", bound("8080", "0.0.0.0"), "::!8080=80/TCP"},
		{"IPv6 only", "8080=80/TCP", bound("8080", "::"), "0.0.0.0!8080=80/TCP"},
		{"the host's own addresses", "8080=80/TCP", bound("8080", "192.0.2.7", "127.0.0.1"), "::!8080=80/TCP"},
		{"the host's own addresses, IPv4 was all that was wanted", "0.0.0.0!8080=80/TCP", bound("8080", "192.0.2.7", "127.0.0.1"), ""},
		{"IPv4 was all that was wanted", "0.0.0.0!8080=80/TCP", bound("8080", "0.0.0.0"), ""},
		{"another port", "8080=80/TCP", bound("8081", "0.0.0.0", "::"), "8080=80/TCP"},
		{"one address", "10.1.0.11!8080=80/TCP,10.1.0.12!8080=80/TCP", bound("8080", "10.1.0.11"), "10.1.0.12!8080=80/TCP"},
		{"IPv6 address", "fd00::1!8080=80/TCP", bound("8080", "fd00::1"), ""},
		{"the other family's", "fd00::1!8080=80/TCP", bound("8080", "0.0.0.0"), "fd00::1!8080=80/TCP"},
		{"broken label", "x,99999=1/TCP,::zz!1=1/TCP,5=6/SCTP", nil, "5=6/SCTP"},
	} {
		if got := formatHostPorts(unpublished(inspect(test.label, test.ports))); got != test.want {
			t.Errorf("%s: %s; want %s", test.name, got, test.want)
		}
	}
	stopped := inspect("8080=80/TCP", nil)
	stopped.State.Running = false
	if got := unpublished(stopped); got != nil {
		t.Errorf("a container that does not run: %v", got)
	}
}

func TestBindTo(t *testing.T) {
	here := []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fd00::7"), netip.MustParseAddr("127.0.0.1")}
	for _, test := range []struct {
		wanted string
		host   []netip.Addr
		want   string
	}{
		{"", here, "192.0.2.7 127.0.0.1"},
		{"0.0.0.0", here, "192.0.2.7 127.0.0.1"},
		{"::", here, "::"},
		{"192.0.2.9", here, "192.0.2.9"},
		{"fd00::9", here, "fd00::9"},
		{"", nil, ""},
		{"0.0.0.0", nil, "0.0.0.0"},
	} {
		wanted, _ := netip.ParseAddr(test.wanted)
		if got := strings.Join(bindTo(wanted, test.host), " "); got != test.want {
			t.Errorf("hostIP %q of %v: %q; want %q", test.wanted, test.host, got, test.want)
		}
	}
}

func TestHostPortsOfPod(t *testing.T) {
	p := basePod()
	p.Spec.InitContainers = []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 1, ContainerPort: 2, HostIP: "fd00::1"}, {ContainerPort: 3}}}}
	p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 53, ContainerPort: 53, Protocol: v1.ProtocolUDP}, {HostPort: 53, ContainerPort: 53, Protocol: v1.ProtocolUDP}}
	ports, err := hostPorts(p)
	if got := formatHostPorts(ports); err != nil || got != "fd00::1!1=2/TCP,53=53/UDP" {
		t.Errorf("%s, %v", got, err)
	}
	p.Spec.Containers[0].Ports[0].HostIP = "here"
	if _, err := hostPorts(p); err == nil {
		t.Error("hostIP here is no address, and passes")
	}
}
