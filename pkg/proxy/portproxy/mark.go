package portproxy

import (
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/netsh"
)

// markRange has the addresses at which marks listen: unique local ones (RFC 4193) that spell "WINKUBE" and that no host
// has, so that nothing ever listens there.
var markRange = netip.MustParsePrefix("fd57:494e:4b55:4245::/64")

// mark returns the rule that marks the rule at listen as ours. For readers of the list, it leads to that rule's
// listener. It has the same port and an address derived from its address: ::a.b.c.d for IPv4, a digest with the highest
// bit set for IPv6.
func mark(listen netip.AddrPort) netsh.Rule {
	at := markRange.Addr().As16()
	if addr := listen.Addr(); addr.Is4() {
		copy(at[12:], addr.AsSlice())
	} else {
		sum := sha256.Sum256(addr.AsSlice())
		copy(at[8:], sum[:8])
		at[8] |= 0x80
	}
	return netsh.Rule{Listen: netip.AddrPortFrom(netip.AddrFrom16(at), listen.Port()), Connect: listen}
}

func isMark(r netsh.Rule) bool { return markRange.Contains(r.Listen.Addr()) }

// firewallName is the name of the rules that admit clients on other hosts.
const firewallName = "winkube port proxy"

// maxPorts is the number of ports in one firewall rule.
const maxPorts = 100

// firewall returns the lines that open the ports of all fronts for the service that listens there, or none if they are
// open already.
func (b *Backend) firewall() []string {
	ports := map[uint16]bool{}
	for front := range b.wants {
		if !b.cfg.NoFirewall {
			ports[front.Port()] = true
		}
	}
	var lines []string
	for chunk := range slices.Chunk(slices.Sorted(maps.Keys(ports)), maxPorts) {
		lines = append(lines, netsh.Allow{Name: firewallName, Service: "iphlpsvc", Ports: chunk}.Add())
	}
	text := strings.Join(lines, "\n")
	if b.opened && text == b.open {
		return nil
	}
	b.open = text
	return append(append([]string{netsh.Disallow(firewallName)}, lines...), netsh.Allowed(firewallName))
}

// look checks whether the firewall accepted its lines, if there were any. A disabled firewall accepts none; that is not
// an error, and they are written again with the next full comparison.
func (b *Backend) look(lines []string, output string) {
	if !slices.Contains(lines, netsh.Allowed(firewallName)) {
		return
	}
	b.opened = strings.Contains(output, firewallName) == (b.open != "")
	if !b.opened && !b.said {
		klog.ErrorS(nil, "Windows Firewall did not accept the rules for service ports; clients on other hosts may be blocked", "name", firewallName)
	}
	b.said = !b.opened
}
