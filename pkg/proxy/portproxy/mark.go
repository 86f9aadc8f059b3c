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

// markRange holds the addresses at which marks listen: unique local ones (RFC 4193) that read "WINKUBE" and that no host has, so that nothing
// ever listens there.
var markRange = netip.MustParsePrefix("fd57:494e:4b55:4245::/64")

// mark is the rule that says of the one at listen that it is ours. It leads to that one's listener, for people who look at the list; it listens
// at its port and at an address made of its address: ::a.b.c.d for IPv4, a digest with the highest bit set for IPv6.
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

// firewallName is that of the rules which let clients of other hosts in.
const firewallName = "winkube port proxy"

// maxPorts is how many ports one rule of the firewall has.
const maxPorts = 100

// firewall opens the ports that fronts have, for the service that listens there. It has no lines when they are open.
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

// look notes whether the firewall took its lines, if there were any. A firewall that is switched off takes none; that stops nothing here, and
// they are written again when everything is compared.
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
