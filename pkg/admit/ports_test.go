package admit

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// TestReservedPorts: a hostPort cannot be a port of the node's daemons, and the refusal names the daemon. A pod with hostNetwork is not
// affected.
func TestReservedPorts(t *testing.T) {
	host := func(p *v1.Pod) { p.Spec.HostNetwork = true }
	reserved := []Reserved{
		{"kubelet", v1.ProtocolTCP, netip.MustParseAddrPort("0.0.0.0:10250")}, {"kubelet", v1.ProtocolTCP, netip.MustParseAddrPort("127.0.0.1:10248")},
		{"proxy", v1.ProtocolTCP, netip.MustParseAddrPort("[::]:10256")}, {"unbound", v1.ProtocolTCP, netip.MustParseAddrPort("127.0.0.1:0")},
		{"overlay network", v1.ProtocolUDP, netip.MustParseAddrPort("[::]:4789")},
	}
	a := New(Config{
		NodeName: "n", Platform: pod.Platform{OS: "linux"}, MaxPods: 100, Allocatable: func() v1.ResourceList { return nil }, Node: func() *v1.Node { return nil },
		Reserved: func() []Reserved { return reserved },
	})
	for _, test := range []struct {
		name   string
		option []option
		want   string // in the message; "": admitted
	}{
		{"all addresses", []option{port("", v1.ProtocolTCP, 10250)}, "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports: port 10250/TCP is the kubelet's; want another hostPort"},
		{"no protocol", []option{port("", "", 10250)}, "10250/TCP is the kubelet's"},
		{"one address", []option{port("192.0.2.7", v1.ProtocolTCP, 10250)}, "192.0.2.7:10250/TCP is the kubelet's"},
		{"loopback", []option{port("127.0.0.1", v1.ProtocolTCP, 10248)}, "127.0.0.1:10248/TCP is the kubelet's"},
		{"loopback among all", []option{port("0.0.0.0", v1.ProtocolTCP, 10248)}, "10248/TCP is the kubelet's"},
		{"mapped", []option{port("::ffff:127.0.0.1", v1.ProtocolTCP, 10248)}, "10248/TCP is the kubelet's"},
		{"mapped, all", []option{port("::ffff:0.0.0.0", v1.ProtocolTCP, 10248)}, "10248/TCP is the kubelet's"},
		{"the proxy's", []option{port("2001:db8::5", v1.ProtocolTCP, 10256)}, "10256/TCP is the proxy's"},
		{"a sidecar's", []option{initContainer(true, nil, 10250)}, "10250/TCP is the kubelet's"},
		{"a static pod's", []option{staticPod, port("", v1.ProtocolTCP, 10250)}, "10250/TCP is the kubelet's"},
		{"another address than loopback", []option{port("192.0.2.7", v1.ProtocolTCP, 10248)}, ""},
		{"the tunnel's", []option{port("", v1.ProtocolUDP, 4789)}, "4789/UDP is the overlay network's"},
		{"the tunnel's at an address", []option{port("192.0.2.7", v1.ProtocolUDP, 4789)}, "192.0.2.7:4789/UDP is the overlay network's"},
		{"UDP", []option{port("", v1.ProtocolUDP, 10250)}, ""},
		{"TCP at the tunnel's port", []option{port("", v1.ProtocolTCP, 4789)}, ""},
		{"an init container has no ports", []option{initContainer(false, nil, 10250)}, ""},
		{"in the host's network", []option{host, port("", v1.ProtocolTCP, 10250)}, ""},
		{"no hostPort", nil, ""},
		{"another", []option{port("", v1.ProtocolTCP, 10251)}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod("p", test.option...)
			r := a.Admit(p)
			a.Release(p.UID)
			if test.want == "" && r != nil || test.want != "" && (r == nil || r.Reason != ReasonNodePorts || !strings.Contains(r.Message, test.want)) {
				t.Errorf("%+v; want %q", r, test.want)
			}
		})
	}
	p := newPod("running", port("", v1.ProtocolTCP, 10250))
	a.Adopt(p) // it ran under an earlier agent
	if r := a.Admit(newPod("next")); r != nil {
		t.Errorf("%+v", r)
	}
	reserved = append(reserved, Reserved{"proxy", v1.ProtocolTCP, netip.MustParseAddrPort("0.0.0.0:20256")}) // its real port became known
	if r := a.Admit(newPod("later", port("", v1.ProtocolTCP, 20256))); r == nil || !strings.Contains(r.Message, "20256/TCP is the proxy's") {
		t.Errorf("%+v", r)
	}
}
