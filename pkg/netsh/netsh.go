// Package netsh is netsh.exe as plain data: the lines that set and remove port proxy and firewall rules, the listing read back, and a
// Program that runs many lines as one script. It decides nothing.
//
//	proxy/portproxy --> lines --> Program --> netsh -f SCRIPT --> output --> ParseDump
//
// netsh complains in the language of Windows, so nothing here reads its sentences. Its dump is itself a script, and the words of scripts are
// the same everywhere.
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

// New returns the Program that run finds.
func New(run command.Runner) *Program { return &Program{run: run} }

// scriptTime is how long a script may take: some thousand lines, and a Windows that is busy.
const scriptTime = 5 * time.Minute

// Script runs lines as one script, in order, and returns what netsh printed. A line that fails stops no other; whether that makes an error
// depends on the version of Windows, so the caller looks at what is there afterwards. Errors wrap those of command.Runner.
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

// Rule is a port proxy rule: TCP connections to Listen are relayed to Connect by the service IP Helper. The families of both make its kind.
type Rule struct {
	Listen  netip.AddrPort // the unspecified address: all of the host's
	Connect netip.AddrPort // read back and invalid: it leads to a name
	kind    string         // as read back
}

// Kind is netsh's word for the families: v4tov4, v4tov6, v6tov4 or v6tov6.
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

// Dump is the line that lists all port proxy rules.
const Dump = "interface portproxy dump"

// Add is the line that makes a rule, or changes where the one of its kind at its listener leads.
func (r Rule) Add() string {
	return fmt.Sprintf("interface portproxy add %s %s connectaddress=%s connectport=%d", r.Kind(), r.listener(), r.Connect.Addr(), r.Connect.Port())
}

// Delete is the line that removes a rule.
func (r Rule) Delete() string {
	return fmt.Sprintf("interface portproxy delete %s %s", r.Kind(), r.listener())
}

// listener leaves the unspecified address out: netsh then means all addresses, and lists it so.
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

// ParseDump reads the rules out of what a script printed whose last line is Dump. What stands before the listing is passed over; without a
// whole listing the rules are unknown, which is an error and never no rules. Rules that listen on a name are left out.
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

// cutLast cuts at the last line that reads mark.
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

// parseAdd reads a line "add KIND name=value ...". netsh leaves out what is its default: all addresses, this host, the listener's port.
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

// addrPort is the zero AddrPort for what is no address of the family with a port.
func addrPort(address, port, want string) (netip.AddrPort, bool) {
	addr, err := netip.ParseAddr(address)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || number == 0 || family(addr) != want {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr, uint16(number)), true
}
