package convert

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/go-connections/nat"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

func TestUnpublished(t *testing.T) {
	inspect := func(label string, ports nat.PortMap) container.InspectResponse {
		settings := &container.NetworkSettings{}
		settings.Ports = ports
		return container.InspectResponse{
			ContainerJSONBase: &container.ContainerJSONBase{State: &container.State{Running: true}},
			Config:            &container.Config{Labels: map[string]string{identity.LabelHostPorts: label}},
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
		if got := identity.FormatHostPorts(Unpublished(inspect(test.label, test.ports))); got != test.want {
			t.Errorf("%s: %s; want %s", test.name, got, test.want)
		}
	}
	stopped := inspect("8080=80/TCP", nil)
	stopped.State.Running = false
	if got := Unpublished(stopped); got != nil {
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
	p.Spec.InitContainers = []v1.Container{
		{Ports: []v1.ContainerPort{{HostPort: 10250, ContainerPort: 1}}}, // it exits before anything connects to it
		{RestartPolicy: ptr(v1.ContainerRestartPolicyAlways), Ports: []v1.ContainerPort{{HostPort: 1, ContainerPort: 2, HostIP: "fd00::1"}, {ContainerPort: 3}}},
	}
	p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 53, ContainerPort: 53, Protocol: v1.ProtocolUDP}, {HostPort: 53, ContainerPort: 53, Protocol: v1.ProtocolUDP}}
	ports, err := HostPorts(p)
	if got := identity.FormatHostPorts(ports); err != nil || got != "fd00::1!1=2/TCP,53=53/UDP" {
		t.Errorf("%s, %v", got, err)
	}
	p.Spec.Containers[0].Ports[0].HostIP = "here"
	if _, err := HostPorts(p); err == nil {
		t.Error("hostIP here is no address, and passes")
	}
}

// TestHostIPs: a hostPort must use an address of the host; the error for another address lists the valid ones.
func TestHostIPs(t *testing.T) {
	a := netip.MustParseAddr
	own := []netip.Addr{a("192.0.2.7"), a("172.17.0.1"), a("127.0.0.1"), a("::1"), a("2001:db8::5"), a("fe80::5")}
	for _, test := range []struct{ hostIP, want string }{
		{"", ""}, {"0.0.0.0", ""}, {"::", ""}, {"127.0.0.1", ""}, {"127.0.0.53", ""}, {"::1", ""}, {"192.0.2.7", ""}, {"172.17.0.1", ""}, {"2001:db8::5", ""},
		{"2001:DB8:0::5", ""}, {"::ffff:192.0.2.7", ""}, {"fe80::5", ""}, {"::ffff:0.0.0.0", ""},
		{"10.96.0.10", "container app: ports: hostIP 10.96.0.10 of hostPort 53: this node does not have that address (addresses of Services do not count); want one of the node's (192.0.2.7, 172.17.0.1), a loopback address, or no hostIP"},
		{"::ffff:10.96.0.10", "hostIP ::ffff:10.96.0.10 of hostPort 53"}, {"fd00:96::a", "hostIP fd00:96::a of hostPort 53: this node does not have that address (addresses of Services do not count); want one of the node's (2001:db8::5)"},
		{"224.0.0.1", "hostIP 224.0.0.1"}, {"255.255.255.255", "hostIP 255.255.255.255"},
	} {
		for _, platform := range []pod.Platform{linux, windows2019, windows2016} {
			p := basePod()
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 53, HostPort: 53, Protocol: v1.ProtocolUDP, HostIP: test.hostIP}}
			target := Target{Platform: platform, HostIPs: own, HostAddresses: own[:1]}
			_, err := Sandbox(p, pod.Step{Sandbox: &pod.SandboxInputs{Network: "cbr0"}}, "pause", target)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("hostIP %q: %v; want %q", test.hostIP, err, test.want)
			}
			p.Spec.Containers[0].Ports[0].HostPort = 0
			if _, err := Sandbox(p, pod.Step{Sandbox: &pod.SandboxInputs{Network: "cbr0"}}, "pause", target); err != nil {
				t.Errorf("hostIP %q without a hostPort: %v", test.hostIP, err)
			}
		}
	}
}
