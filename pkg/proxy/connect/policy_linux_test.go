package connect

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/command"
)

// policies are rules of a NetworkPolicy engine on a node, similar to kube-router's iptables rules
// (cloudnativelabs/kube-router#315: in FORWARD, packets to or from a pod go through that pod's chain, and sets have the
// addresses of the pods that a policy selects). They admit the node itself, for probes. The server admits the first
// client. The third client may send only to another pod. No packet may have a ClusterIP.
const policies = `table inet netpol {
	set clients4 { type ipv4_addr; elements = { 10.1.1.2, 10.1.1.4 } }
	set clients6 { type ipv6_addr; elements = { fd01:1::2, fd01:1::4 } }
	chain server {
		fib saddr type local accept
		ip saddr @clients4 meta l4proto { tcp, udp } th dport 8080 accept
		ip6 saddr @clients6 meta l4proto { tcp, udp } th dport 8080 accept
		reject
	}
	chain egress {
		ip daddr 10.1.1.9 accept
		reject
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state established,related accept
		ip daddr 10.96.0.0/16 drop
		ip6 daddr fd96::/64 drop
		ip saddr 10.1.1.4 goto egress
		ip6 saddr fd01:1::4 goto egress
		ip daddr 10.1.1.1 goto server
		ip6 daddr fd01:1::1 goto server
	}
	chain output {
		type filter hook output priority filter; policy accept;
		ip daddr 10.1.1.1 goto server
		ip6 daddr fd01:1::1 goto server
	}
}
`

// pod creates a network namespace that is routed through the node, as pods are.
func (h *host) pod(t *testing.T, node netns.NsHandle, number int) (space netns.NsHandle) {
	t.Helper()
	h.inside(t, node, func() (err error) { space, err = netns.New(); return err })
	t.Cleanup(func() { space.Close() })
	for _, one := range []netns.NsHandle{node, space} {
		h.inside(t, one, func() error { // otherwise link-local addresses are unusable for a second
			return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
		})
	}
	name := fmt.Sprint("pod", number)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Namespace: netlink.NsFd(node)}, PeerName: "eth0", PeerNamespace: netlink.NsFd(space)}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	for where, lines := range map[netns.NsHandle]string{
		node: fmt.Sprintf("link set lo up\nlink set %[1]s up\naddr replace 169.254.1.1/32 dev %[1]s\naddr replace fd01:9::1/128 dev %[1]s nodad\n"+
			"route add 10.1.1.%[2]d/32 dev %[1]s\nroute add fd01:1::%[2]d/128 dev %[1]s\n", name, number),
		space: fmt.Sprintf("link set lo up\nlink set eth0 up\naddr add 10.1.1.%[1]d/32 dev eth0\naddr add fd01:1::%[1]d/128 dev eth0 nodad\n"+
			"route add 169.254.1.1/32 dev eth0\nroute add default via 169.254.1.1 dev eth0\nroute add fd01:9::1/128 dev eth0\nroute add default via fd01:9::1 dev eth0\n", number),
	} {
		h.inside(t, where, func() error {
			_, err := command.New().Run(context.Background(), []byte(lines), "ip", "-batch", "-")
			return err
		})
	}
	return space
}

// TestNetworkPolicy: rules with pods' addresses apply to clients of the ClusterIP as to those of the pod's address,
// both at the server and at the client.
func TestNetworkPolicy(t *testing.T) {
	if _, err := command.New().Run(t.Context(), nil, "nft", "--version"); err != nil {
		t.Skipf("needs nft: %v", err)
	}
	h := newHost(t)
	var node netns.NsHandle
	h.inside(t, h.own, func() (err error) { node, err = netns.New(); return err })
	defer node.Close()
	server, admitted, others, elsewhere := h.pod(t, node, 1), h.pod(t, node, 2), h.pod(t, node, 3), h.pod(t, node, 4)
	h.inside(t, node, func() error {
		for _, setting := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+setting, []byte("1"), 0); err != nil {
				return err
			}
		}
		_, err := command.New().Run(context.Background(), []byte(policies), "nft", "-f", "-")
		return err
	})
	h.serve(t, server, "10.1.1.1:8080")
	h.serve(t, server, "[fd01:1::1]:8080")
	h.to(t, route("a 10.96.0.1:80 10.1.1.1:8080"), route("b 10.96.0.1:80 10.1.1.1:8080", udp), route("c [fd96::1]:80 [fd01:1::1]:8080"), route("d [fd96::1]:80 [fd01:1::1]:8080", udp))
	refused := unix.ECONNREFUSED.Error()
	for _, client := range []struct {
		what       string
		from       netns.NsHandle
		ipv4, ipv6 string
	}{
		{"the client that the policy selects", admitted, "10.1.1.1:8080 10.1.1.2", "[fd01:1::1]:8080 fd01:1::2"},
		{"another client", others, refused, refused},
		{"a client that may send elsewhere only", elsewhere, refused, refused},
		{"the server itself", server, "10.1.1.1:8080 10.1.1.1", "[fd01:1::1]:8080 fd01:1::1"},
		{"the node, which the relay's connections come from", node, "10.1.1.1:8080 169.254.1.1", "[fd01:1::1]:8080 fd01:9::1"},
	} {
		for addr, want := range map[string]string{"10.96.0.1:80": client.ipv4, "[fd96::1]:80": client.ipv6, "10.1.1.1:8080": client.ipv4, "[fd01:1::1]:8080": client.ipv6} {
			for _, network := range []string{"tcp", "udp"} {
				h.inside(t, client.from, func() error {
					expect(t, client.what+", "+network+" "+addr, ask(network, addr, nil), want)
					return nil
				})
			}
		}
	}
}
