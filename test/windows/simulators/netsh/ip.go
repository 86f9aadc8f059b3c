package netsh

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ip executes "interface ipv4" (or ip) and "interface ipv6" commands: add and delete address, set interface. Commands are recorded as text
// and do not change the simulated IP stack, which changes only through its own API.
func (n *Netsh) ip(context string, words []string) answer {
	unknown := answer{text: "The following command was not found: interface " + context + " " + strings.Join(words, " ") + ".\r\n", failed: true, unknown: true}
	if len(words) < 3 {
		return unknown
	}
	family := byte('4')
	if context == "ipv6" {
		family = '6'
	}
	switch strings.ToLower(words[0] + " " + words[1]) {
	case "show excludedportrange":
		return n.excludedPorts(words[2:])
	case "show dynamicport":
		return dynamicPorts(words[2:])
	case "add address":
		return n.address("address", family, words[2:], []string{"name", "address", "mask", "store", "skipassource"})
	case "delete address":
		return n.address("removed", family, words[2:], []string{"name", "address", "store"})
	case "set interface":
		values, ok := parse(words[2:], []string{"interface", "forwarding", "metric", "mtu", "store"})
		if !ok || values["interface"] == "" {
			return failed(badSyntax)
		}
		for name, allowed := range map[string][]string{"forwarding": {"", "enabled", "disabled"}, "store": {"", "active", "persistent"}} {
			if !slices.Contains(allowed, values[name]) {
				return failed(badSyntax)
			}
		}
		n.settled = append(n.settled, "interface "+values["interface"]+" IPv"+string(family)+" forwarding "+values["forwarding"])
		return answer{text: "Ok.\r\n\r\n"}
	}
	return unknown
}

// The dynamic ports of a new Windows (Microsoft, "The default dynamic port range for TCP/IP has changed").
const firstDynamic, dynamicCount = 49152, 16384

// administered is the range that an administrator excluded.
var administered = [2]int{50000, 50059}

// excluded returns the ports that no program may bind.
func (n *Netsh) excluded(tcp bool) [][2]int {
	out := [][2]int{{5357, 5357}, administered}
	if n.Reserved != nil && tcp {
		for i := range n.Reserved() { // from the end, clear of the administrator's range
			first := firstDynamic + dynamicCount - (i+1)*64
			out = append(out, [2]int{first, first + 63})
		}
	}
	return out
}

// Ports returns the dynamic TCP ports, and the excluded ranges of all ports.
func (n *Netsh) Ports() (first, count int, excluded [][2]int) {
	return firstDynamic, dynamicCount, n.excluded(true)
}

// dynamicPorts prints the range in the format of Microsoft's page.
func dynamicPorts(params []string) answer {
	if len(params) != 1 || params[0] != "tcp" && params[0] != "udp" {
		return failed(badSyntax)
	}
	return answer{text: fmt.Sprintf("\r\nProtocol %s Dynamic Port Range\r\n---------------------------------\r\nStart Port      : %d\r\nNumber of Ports : %d\r\n\r\n", params[0], firstDynamic, dynamicCount)}
}

// excludedPorts prints the ports that no program may bind, in the format of users' reports (docker/for-win#11584). It includes HNS's reservations
// (microsoft/SDN collectlogs.ps1 computes the free blocks from it).
func (n *Netsh) excludedPorts(params []string) answer {
	values, ok := parse(params, []string{"protocol", "store"})
	if !ok || values["protocol"] != "tcp" && values["protocol"] != "udp" {
		return failed(badSyntax)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\r\nProtocol %s Port Exclusion Ranges\r\n\r\nStart Port    End Port\r\n----------    --------\r\n", values["protocol"])
	for _, r := range n.excluded(values["protocol"] == "tcp") {
		mark := ""
		if r == administered {
			mark = "     *"
		}
		fmt.Fprintf(&b, "%10d  %10d%s\r\n", r[0], r[1], mark)
	}
	b.WriteString("\r\n* - Administered port exclusions.\r\n\r\n")
	return answer{text: b.String()}
}

func (n *Netsh) address(what string, family byte, params, names []string) answer {
	values, ok := parse(params, names)
	if !ok || values["name"] == "" || values["address"] == "" {
		return failed(badSyntax)
	}
	addr, err := netip.ParseAddr(strings.SplitN(values["address"], "/", 2)[0])
	if err != nil || addr.Is4() != (family == '4') {
		return failed(badParameter)
	}
	line := func(what string) string { return what + " " + addr.String() + " on " + values["name"] }
	i := slices.Index(n.settled, line("address"))
	switch {
	case what == "address" && i >= 0:
		return failed("The object already exists.\r\n\r\n")
	case what == "address":
		n.settled = append(n.settled, line("address"))
	case i < 0:
		return failed("Element not found.\r\n\r\n")
	default:
		n.settled = slices.Delete(n.settled, i, i+1)
	}
	return answer{text: "\r\n"}
}
