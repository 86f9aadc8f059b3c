package netsh

import (
	"net/netip"
	"slices"
	"strings"
)

// ip does "interface ipv4" (or ip) and "interface ipv6" commands: add and delete address, set interface. What was done is kept as a line of
// text; the simulated IP stack is told by its own API only.
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
		return excludedPorts(words[2:])
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

// excludedPorts is the table of ports that no program may bind, in the form that users' reports show (docker/for-win#11584).
func excludedPorts(params []string) answer {
	values, ok := parse(params, []string{"protocol", "store"})
	if !ok || values["protocol"] != "tcp" && values["protocol"] != "udp" {
		return failed(badSyntax)
	}
	return answer{text: "\r\nProtocol " + values["protocol"] + " Port Exclusion Ranges\r\n\r\nStart Port    End Port\r\n----------    --------\r\n" +
		"      5357        5357\r\n     50000       50059     *\r\n\r\n* - Administered port exclusions.\r\n\r\n"}
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
