// Package netsh wraps netsh.exe: it formats the commands that set and remove port proxy and firewall rules, parses the
// listing, and has a Program that runs many commands as one script. It decides nothing.
//
//	proxy/portproxy --> lines --> Program --> netsh -f SCRIPT --> output --> ParseDump
//
// netsh prints messages in the language of Windows, so this package does not parse them. Its dump is itself a script,
// and the words of scripts are the same in every language.
package netsh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/winkube/winkube/pkg/command"
)

// Program runs netsh.exe.
type Program struct{ run command.Runner }

// New returns a Program that uses run.
func New(run command.Runner) *Program { return &Program{run: run} }

// scriptTime is the timeout of a script: enough for some thousand lines on a busy Windows.
const scriptTime = 5 * time.Minute

// Script runs lines as one script, in order, and returns netsh's output. A failing line does not stop the others.
// Whether it causes an error depends on the version of Windows, so the caller must check the result. Errors wrap those
// of command.Runner.
func (p *Program) Script(ctx context.Context, lines []string) (string, error) {
	dir, err := os.MkdirTemp("", "winkube-netsh-")
	if err != nil {
		return "", fmt.Errorf("cannot write a script for netsh: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "script.txt")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\r\n")+"\r\n"), 0o600); err != nil {
		return "", fmt.Errorf("cannot write a script for netsh: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, scriptTime)
	defer cancel()
	out, err := p.run.Run(ctx, nil, "netsh", "-f", path)
	return string(out), err
}

// Rule is a port proxy rule: the IP Helper service relays TCP connections from Listen to Connect. The address families
// of both determine its kind.
type Rule struct {
	Listen  netip.AddrPort // the unspecified address: all addresses of the host
	Connect netip.AddrPort // invalid after parsing: the target is a name
	kind    string         // as parsed
}

// Kind returns netsh's name for the families: v4tov4, v4tov6, v6tov4 or v6tov6.
func (r Rule) Kind() string {
	if r.kind != "" {
		return r.kind
	}
	return family(r.Listen.Addr()) + "to" + family(r.Connect.Addr())
}

func family(addr netip.Addr) string {
	if addr.Is4() {
		return "v4"
	}
	return "v6"
}

// Dump is the command that lists all port proxy rules.
const Dump = "interface portproxy dump"

// Add returns the command that adds a rule, or changes the target of the rule of that kind with the same listener.
func (r Rule) Add() string {
	return fmt.Sprintf("interface portproxy add %s %s connectaddress=%s connectport=%d", r.Kind(), r.listener(), r.Connect.Addr(), r.Connect.Port())
}

// Delete returns the command that removes a rule.
func (r Rule) Delete() string {
	return fmt.Sprintf("interface portproxy delete %s %s", r.Kind(), r.listener())
}

// listener omits the unspecified address: netsh then uses all addresses, and lists the rule that way.
func (r Rule) listener() string {
	text := fmt.Sprintf("listenport=%d", r.Listen.Port())
	if !r.Listen.Addr().IsUnspecified() {
		text += " listenaddress=" + r.Listen.Addr().String()
	}
	return text
}

const (
	dumpBegin = "pushd interface portproxy"
	dumpEnd   = "popd"
)

// ParseDump parses the rules in the output of a script whose last line is Dump. It skips what precedes the listing.
// Without a complete listing the rules are unknown, which is an error, never an empty result. It omits rules that
// listen on a name.
func ParseDump(output string) ([]Rule, error) {
	_, listing, found := cutLast(output, dumpBegin)
	if !found {
		return nil, errors.New("netsh listed no port proxy rules: its output lacks the line \"" + dumpBegin + "\"")
	}
	var rules []Rule
	for line := range strings.Lines(listing) {
		words := strings.Fields(line)
		switch {
		case len(words) == 1 && words[0] == dumpEnd:
			return rules, nil
		case len(words) > 2 && words[0] == "add":
			if r, ok := parseAdd(words[1], words[2:]); ok {
				rules = append(rules, r)
			}
		}
	}
	return nil, errors.New("netsh did not list all port proxy rules: its output lacks the line \"" + dumpEnd + "\"")
}

// cutLast cuts at the last line that equals mark.
func cutLast(text, mark string) (before, after string, found bool) {
	at, end := -1, 0
	offset := 0
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == mark {
			at, end = offset, offset+len(line)
		}
		offset += len(line)
	}
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[end:], true
}

// parseAdd parses a line "add KIND name=value ...". netsh omits defaults: all addresses, this host, the listener's
// port.
func parseAdd(kind string, params []string) (Rule, bool) {
	from, to, ok := strings.Cut(kind, "to")
	anyAddress := map[string]string{"v4": "0.0.0.0", "v6": "::"}
	own := map[string]string{"v4": "127.0.0.1", "v6": "::1"}
	if !ok || anyAddress[from] == "" || anyAddress[to] == "" {
		return Rule{}, false
	}
	values := map[string]string{"listenaddress": anyAddress[from], "connectaddress": own[to]}
	for _, p := range params {
		name, value, _ := strings.Cut(p, "=")
		values[strings.ToLower(name)] = value
	}
	if values["listenaddress"] == "*" {
		values["listenaddress"] = anyAddress[from]
	}
	if values["connectport"] == "" {
		values["connectport"] = values["listenport"]
	}
	r := Rule{kind: kind}
	r.Listen, ok = addrPort(values["listenaddress"], values["listenport"], from)
	r.Connect, _ = addrPort(values["connectaddress"], values["connectport"], to)
	return r, ok
}

// addrPort parses an address of the wanted family and a port; false: it is none.
func addrPort(address, port, want string) (netip.AddrPort, bool) {
	addr, err := netip.ParseAddr(address)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || number == 0 || family(addr) != want {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr, uint16(number)), true
}
