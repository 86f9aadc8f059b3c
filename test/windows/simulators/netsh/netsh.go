// Package netsh simulates netsh.exe: the contexts interface portproxy, interface ipv4/ipv6 and advfirewall firewall, commands and scripts (-f). It
// accepts only the syntax that Microsoft documents ("Netsh interface portproxy", "Netsh commands for Interface"), keeps rules, and prints Windows'
// English output.
//
//	program --> shim netsh.exe --> Netsh.Run --> state, calls.Log
//
// Port proxy rules are in the registry (HKLM\SYSTEM\CurrentControlSet\Services\PortProxy) and survive a reboot. So do addresses from
// "add address" (store=persistent is the default).
package netsh

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// Netsh is the simulated program and its state. It is safe for concurrent use.
type Netsh struct {
	// Reserved returns the number of blocks of 64 dynamic ports that HNS has reserved. Nil is allowed.
	Reserved func() int

	log *calls.Log

	mu       sync.Mutex
	rules    []Rule
	firewall []FirewallRule
	settled  []string // successful interface commands, in order
	refuse   func(command string) bool
}

// New returns a Netsh without rules.
func New(log *calls.Log) *Netsh { return &Netsh{log: log} }

// Rule is a port proxy rule. Kind is v4tov4, v4tov6, v6tov4 or v6tov6. Each listener has one rule.
type Rule struct{ Kind, ListenAddress, ListenPort, ConnectAddress, ConnectPort string }

// Refuse makes the commands fail for which refuse returns true; nil ends it. If it returns true for "netsh", the whole program fails with
// garbled output.
func (n *Netsh) Refuse(refuse func(command string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = refuse
}

// AddRule adds a rule as if another program had created it.
func (n *Netsh) AddRule(r Rule) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = append(n.rules, r)
}

// Rules returns the rules, sorted.
func (n *Netsh) Rules() []Rule {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sorted()
}

func (n *Netsh) sorted() []Rule {
	out := slices.Clone(n.rules)
	slices.SortFunc(out, func(a, b Rule) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return out
}

// String returns one rule per line, port proxy before firewall, then the interface commands.
func (n *Netsh) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b strings.Builder
	for _, r := range n.sorted() {
		fmt.Fprintf(&b, "portproxy %s %s:%s to %s:%s\n", r.Kind, r.ListenAddress, r.ListenPort, r.ConnectAddress, r.ConnectPort)
	}
	for _, r := range slices.SortedStableFunc(slices.Values(n.firewall), func(a, b FirewallRule) int { return strings.Compare(a.Name, b.Name) }) {
		at := ""
		if r.LocalIP != "" {
			at = " at " + r.LocalIP
		}
		fmt.Fprintf(&b, "firewall %q %s %s %s%s %s %s%s\n", r.Name, r.Action, r.Direction, r.Program, r.Service, r.Protocol, r.LocalPort, at)
	}
	for _, line := range n.settled {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

// Messages of Windows.
const (
	notFound     = "The system cannot find the file specified.\r\n\r\n"
	badParameter = "The parameter is incorrect.\r\n\r\n"
	refused      = "Access is denied.\r\n\r\n"
	rubbish      = "\x00\x8f\r\nHelper-DLL ?\r\n"
	badSyntax    = "The syntax supplied for this command is not valid. Check help for the correct syntax.\r\n\r\n"
)

// answer is the output of one command, and whether it failed.
type answer struct {
	text    string
	failed  bool
	unknown bool
}

func failed(text string) answer { return answer{text: text, failed: true} }

// Run executes one command line or, with -f, a script: one command per line, # begins a comment, "pushd CONTEXT" and "popd" as in
// netsh's own dumps. A failing line does not stop a script; the exit code is 1 if any line failed. (That netsh continues is known from
// its dumps, which begin with commands that may fail; the exit code is our interpretation.)
func (n *Netsh) Run(args []string, script *string) (output string, code int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse != nil && n.refuse("netsh") {
		n.note(strings.Join(args, " "), failed(rubbish))
		return rubbish, 1
	}
	if len(args) == 2 && args[0] == "-f" {
		if script == nil {
			n.note("-f "+args[1], failed(notFound))
			return notFound, 1
		}
		return n.script(*script)
	}
	a := n.command(args)
	n.note(strings.Join(args, " "), a)
	if a.failed {
		code = 1
	}
	return a.text, code
}

func (n *Netsh) note(line string, a answer) {
	c := calls.Call{Service: "netsh", Function: "run", Args: []string{line}, Unknown: a.unknown}
	if a.failed {
		c.Result, c.Detail = 1, strings.TrimSpace(a.text)
	}
	n.log.Add(c)
}

func (n *Netsh) script(text string) (output string, code int) {
	var b strings.Builder
	var contexts [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words, err := split(line)
		var a answer
		switch {
		case err != nil:
			a = failed(badSyntax)
		case words[0] == "pushd" && len(words) > 1:
			contexts = append(contexts, words[1:])
		case words[0] == "popd" && len(contexts) > 0:
			contexts = contexts[:len(contexts)-1]
		case len(contexts) > 0:
			a = n.command(slices.Concat(contexts[len(contexts)-1], words))
		default:
			a = n.command(words)
		}
		n.note("-f: "+line, a)
		b.WriteString(a.text)
		if a.failed {
			code = 1
		}
	}
	return b.String(), code
}

// split splits a line of a script into words; quoted words may contain spaces.
func split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	for _, r := range line {
		switch {
		case r == '"':
			quoted, begun = !quoted, true
		case r == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if quoted {
		return nil, fmt.Errorf("a quote is not closed in %q", line)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// command executes one command. Windows accepts abbreviated words. The simulator accepts only "int" and "ip", so that scripts stay
// readable.
func (n *Netsh) command(words []string) answer {
	lower := make([]string, len(words))
	for i, w := range words {
		lower[i] = strings.ToLower(w)
	}
	if n.refuse != nil && n.refuse(strings.Join(words, " ")) {
		return failed(refused)
	}
	if len(words) > 0 && lower[0] == "advfirewall" {
		return n.advfirewall(words[1:])
	}
	if len(words) >= 2 && (lower[0] == "interface" || lower[0] == "int") {
		switch lower[1] {
		case "portproxy":
			return n.portproxy(lower[2:])
		case "ipv4", "ip", "ipv6":
			return n.ip(lower[1], words[2:])
		}
	}
	return answer{text: "The following command was not found: " + strings.Join(words, " ") + ".\r\n", failed: true, unknown: true}
}
