package netsh

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

var kinds = []string{"v4tov4", "v4tov6", "v6tov4", "v6tov6"}

// portproxy executes "interface portproxy" commands.
func (n *Netsh) portproxy(words []string) answer {
	switch {
	case len(words) == 1 && words[0] == "reset":
		n.rules = nil
		return answer{text: "\r\n"}
	case len(words) == 1 && words[0] == "dump":
		return answer{text: n.dump()}
	case len(words) == 2 && words[0] == "show" && (words[1] == "all" || slices.Contains(kinds, words[1])):
		return answer{text: n.show(words[1])}
	case len(words) >= 2 && slices.Contains([]string{"add", "set", "delete"}, words[0]) && slices.Contains(kinds, words[1]):
		return n.change(words[0], words[1], words[2:])
	}
	return answer{text: "The following command was not found: interface portproxy " + strings.Join(words, " ") + ".\r\n", failed: true, unknown: true}
}

// change adds, sets or deletes a rule. By default the listener is on all addresses, shown as *, and the target is the local computer at
// the listener's port.
func (n *Netsh) change(verb, kind string, params []string) answer {
	names := []string{"listenport", "connectaddress", "connectport", "listenaddress", "protocol"}
	if verb == "delete" {
		names = []string{"listenport", "listenaddress", "protocol"}
	}
	values, ok := parse(params, names)
	if !ok || values["protocol"] != "" && values["protocol"] != "tcp" {
		return failed(badSyntax)
	}
	r := Rule{kind, values["listenaddress"], values["listenport"], values["connectaddress"], values["connectport"]}
	if r.ListenAddress == "" {
		r.ListenAddress = "*"
	}
	if r.ConnectPort == "" {
		r.ConnectPort = r.ListenPort
	}
	if r.ConnectAddress == "" {
		r.ConnectAddress = map[byte]string{'4': "127.0.0.1", '6': "::1"}[kind[5]]
	}
	if !port(r.ListenPort) || !port(r.ConnectPort) || !address(r.ListenAddress, kind[1]) || verb != "delete" && !address(r.ConnectAddress, kind[5]) {
		return failed(badParameter)
	}
	i := slices.IndexFunc(n.rules, func(o Rule) bool {
		return o.Kind[:2] == kind[:2] && o.ListenAddress == r.ListenAddress && o.ListenPort == r.ListenPort && (verb == "add" || o.Kind == kind)
	})
	switch {
	case verb == "delete" && i < 0, verb == "set" && i < 0:
		return failed(notFound)
	case verb == "delete":
		n.rules = slices.Delete(n.rules, i, i+1)
	case i >= 0: // adding an existing rule replaces it: the rule is one registry value
		n.rules[i] = r
	default:
		n.rules = append(n.rules, r)
	}
	return answer{text: "\r\n"}
}

// parse parses parameters: "name=value", or values alone in the order of names. Unlike netsh, the simulator does not accept abbreviated
// names.
func parse(params, names []string) (map[string]string, bool) {
	values := map[string]string{}
	for i, p := range params {
		name, value, named := strings.Cut(p, "=")
		if !named {
			if i >= len(names) {
				return nil, false
			}
			name, value = names[i], p
		}
		if !slices.Contains(names, name) || values[name] != "" || value == "" {
			return nil, false
		}
		values[name] = value
	}
	return values, true
}

func port(text string) bool {
	number, err := strconv.ParseUint(text, 10, 16)
	return err == nil && number > 0
}

// address validates an address. netsh accepts host names too. They are refused here, because netsh resolves them only
// once.
func address(text string, family byte) bool {
	if text == "*" {
		return true
	}
	addr, err := netip.ParseAddr(text)
	return err == nil && addr.Is4() == (family == '4')
}

// show prints tables as Windows does, and only an empty line without rules.
func (n *Netsh) show(what string) string {
	var b strings.Builder
	b.WriteString("\r\n")
	for _, kind := range kinds {
		rules := slices.DeleteFunc(n.sorted(), func(r Rule) bool { return r.Kind != kind })
		if what != "all" && what != kind || len(rules) == 0 {
			continue
		}
		fmt.Fprintf(&b, "Listen on ipv%c:             Connect to ipv%c:\r\n\r\n", kind[1], kind[5])
		b.WriteString("Address         Port        Address         Port\r\n")
		b.WriteString("--------------- ----------  --------------- ----------\r\n")
		for _, r := range rules {
			fmt.Fprintf(&b, "%-15s %-10s  %-15s %-10s\r\n", r.ListenAddress, r.ListenPort, r.ConnectAddress, r.ConnectPort)
		}
		b.WriteString("\r\n")
	}
	return b.String()
}

// dump prints a script that recreates the rules.
func (n *Netsh) dump() string {
	var b strings.Builder
	b.WriteString("\r\n#========================\r\n# Port Proxy configuration\r\n#========================\r\npushd interface portproxy\r\n\r\nreset\r\n")
	for _, r := range n.sorted() {
		listen := ""
		if r.ListenAddress != "*" {
			listen = " listenaddress=" + r.ListenAddress
		}
		fmt.Fprintf(&b, "add %s listenport=%s%s connectaddress=%s connectport=%s\r\n", r.Kind, r.ListenPort, listen, r.ConnectAddress, r.ConnectPort)
	}
	b.WriteString("\r\n\r\npopd\r\n\r\n# End of Port Proxy configuration\r\n\r\n")
	return b.String()
}
