package netsh

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// FirewallRule is a Windows Firewall rule as created by "advfirewall firewall add rule". Names are not unique: several rules may share one, and are
// deleted together. Source: Microsoft, "netsh advfirewall firewall" (add rule, delete rule, show rule). The program System is the kernel, as in
// Windows' own rule for http.sys.
type FirewallRule struct{ Name, Direction, Action, Program, Service, Protocol, LocalPort, LocalIP string }

const noRules = "\r\nNo rules match the specified criteria.\r\n\r\n"

// FirewallRules returns the rules in creation order. They survive a reboot.
func (n *Netsh) FirewallRules() []FirewallRule {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.firewall)
}

// advfirewall executes "advfirewall firewall" commands.
func (n *Netsh) advfirewall(words []string) answer {
	unknown := answer{text: "The following command was not found: advfirewall " + strings.Join(words, " ") + ".\r\n", failed: true, unknown: true}
	if len(words) < 4 || strings.ToLower(words[0]) != "firewall" || strings.ToLower(words[2]) != "rule" {
		return unknown
	}
	verb := strings.ToLower(words[1])
	names := map[string][]string{"add": {"name", "dir", "action", "program", "service", "localip", "protocol", "localport"}, "delete": {"name"}, "show": {"name"}}[verb]
	if names == nil {
		return unknown
	}
	values, ok := parse(words[3:], names)
	if !ok || values["name"] == "" || strings.EqualFold(values["name"], "all") { // "all" means every rule of the host
		return failed(badSyntax)
	}
	if verb == "add" {
		return n.addFirewallRule(values)
	}
	var text strings.Builder
	for _, r := range n.firewall {
		if strings.EqualFold(r.Name, values["name"]) {
			fmt.Fprintf(&text, "\r\nRule Name:                            %s\r\nLocalPort:                            %s\r\n", r.Name, r.LocalPort)
		}
	}
	switch {
	case text.Len() == 0:
		return failed(noRules)
	case verb == "show":
		return answer{text: text.String() + "Ok.\r\n\r\n"}
	}
	before := len(n.firewall)
	n.firewall = slices.DeleteFunc(n.firewall, func(r FirewallRule) bool { return strings.EqualFold(r.Name, values["name"]) })
	return answer{text: fmt.Sprintf("\r\nDeleted %d rule(s).\r\nOk.\r\n\r\n", before-len(n.firewall))}
}

func (n *Netsh) addFirewallRule(values map[string]string) answer {
	r := FirewallRule{values["name"], strings.ToLower(values["dir"]), strings.ToLower(values["action"]), values["program"], values["service"],
		strings.ToLower(values["protocol"]), values["localport"], values["localip"]}
	if r.Protocol == "" {
		r.Protocol = "any"
	}
	portless := r.Protocol != "tcp" && r.Protocol != "udp"
	if !slices.Contains([]string{"in", "out"}, r.Direction) || !slices.Contains([]string{"allow", "block", "bypass"}, r.Action) || portless && r.Protocol != "any" ||
		r.LocalPort != "" && (portless || !portList(r.LocalPort)) || r.Program != "" && r.Program != "System" && !strings.Contains(r.Program, `:\`) || !addressList(r.LocalIP) {
		return failed(badSyntax)
	}
	n.firewall = append(n.firewall, r)
	return answer{text: "Ok.\r\n\r\n"}
}

// addressList validates comma-separated addresses, prefixes and ranges from-to; "" means any.
func addressList(text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := netip.ParseAddr(from)
		if _, prefix := netip.ParsePrefix(part); text == "" || prefix == nil {
			continue
		}
		if last, err2 := netip.ParseAddr(to); err != nil || isRange && (err2 != nil || last.Less(first)) {
			return false
		}
	}
	return true
}

// portList validates comma-separated ports and ranges.
func portList(text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, err := strconv.ParseUint(from, 10, 16)
		if err != nil {
			return false
		}
		if b, err := strconv.ParseUint(to, 10, 16); isRange && (err != nil || b <= a) {
			return false
		}
	}
	return true
}
