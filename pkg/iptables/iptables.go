// Package iptables manages the packet filter rules of Linux that let pods' packets pass: up to three chains of ours and a jump to each.
//
//	[]Rules --Apply--> iptables-save, difference, iptables-restore        []Rules, output of iptables-save --Compare--> differences
//
// It neither interprets nor changes rules of others.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
)

// Rules are the packet filter rules for pods of one address family.
type Rules struct {
	PodCIDR       netip.Prefix   // traffic from and to this range is forwarded
	NonMasquerade []netip.Prefix // sorted; other traffic from PodCIDR is masqueraded; empty: none is
	// Guarded is the pods' bridge if the engine drops packets that reach its containers from elsewhere, before they are routed; "": it does not.
	Guarded string
}

// Filter maintains Rules in iptables and enables forwarding. Only one goroutine at a time may call Apply.
type Filter struct {
	run    command.Runner
	sysctl string          // directory of sysctls: /proc/sys
	sixOff bool            // ip6tables has none of our rules
	rawOff map[string]bool // by tool: the table raw has none of our rules
}

// New returns a Filter that runs iptables with run and uses sysctls below the directory sysctl (/proc/sys).
func New(run command.Runner, sysctl string) *Filter {
	return &Filter{run: run, sysctl: sysctl, rawOff: map[string]bool{}}
}

// iptables-restore waits up to 5 s for other writers. A program that exceeds patience counts as hanging; it delays the node's network once per pause.
const (
	patience = 15 * time.Second
	pause    = 30 * time.Second
)

// OfHost returns the Filter of this host. A hanging program fails with command.ErrHung and is not started again for 30 seconds.
func OfHost() *Filter { return New(command.Patient(command.New(), patience, pause), "/proc/sys") }

// ForwardChain lets all packets of pods pass.
const ForwardChain = "WINKUBE-FORWARD"

const (
	masqChain   = "WINKUBE-MASQ"
	directChain = "WINKUBE-DIRECT"
)

// chain is one chain of ours and the jump to it.
type chain struct {
	table, base, name string
	jump              string   // "" and nil rules: must not exist
	rules             []string // as iptables-save prints them, without "-A chain"
	// docker recognizes the rules of Docker that the jump must precede; nil: none.
	docker func(rule string) bool
}

// Apply replaces our rules by those of want (empty: none) and enables forwarding for their families. It lists each table once, and writes it in one
// transaction only if it differs. It never disables forwarding: others may need it. The error wraps command.ErrNotFound if iptables is missing, and
// command.ErrHung if it hangs.
func (f *Filter) Apply(ctx context.Context, want []Rules) error {
	var four, six []Rules
	for _, r := range want {
		if r.PodCIDR.Addr().Is4() {
			four = append(four, r)
		} else {
			six = append(six, r)
		}
	}
	errs := []error{f.family(ctx, "iptables", four, "net/ipv4/ip_forward")}
	if len(six) > 0 || !f.sixOff {
		err := f.family(ctx, "ip6tables", six, "net/ipv6/conf/all/forwarding")
		if len(six) == 0 {
			f.sixOff, err = true, nil // a host without IPv6 needs no cleanup
		} else {
			f.sixOff = false
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (f *Filter) family(ctx context.Context, tool string, want []Rules, forwarding string) error {
	if len(want) > 0 {
		if err := f.set(forwarding, "1"); err != nil {
			return err
		}
	}
	var script strings.Builder
	for _, c := range f.chains(tool, want) {
		saved, err := f.run.Run(ctx, nil, tool+"-save", "-t", c.table)
		if errors.Is(err, command.ErrNotFound) {
			if len(want) == 0 {
				return nil
			}
			return fmt.Errorf("cannot forward packets between pods and other nodes: %s is missing on this host; install the package iptables: %w", tool, err)
		}
		if c.table == "raw" && err != nil && !errors.Is(err, command.ErrHung) {
			klog.V(2).InfoS("The packet filter has no table raw, so it drops nothing there", "tool", tool, "reason", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot list packet filter rules: %w", err)
		}
		if lines := c.diff(string(saved)); len(lines) > 0 {
			fmt.Fprintf(&script, "*%s\n%s\nCOMMIT\n", c.table, strings.Join(lines, "\n"))
		}
	}
	if script.Len() == 0 {
		f.rawOff[tool] = direct(want).jump == ""
		return nil
	}
	if _, err := f.run.Run(ctx, []byte(script.String()), tool+"-restore", "--noflush", "-w", "5"); err != nil {
		return fmt.Errorf("cannot write packet filter rules: %w", err)
	}
	f.rawOff[tool] = direct(want).jump == ""
	klog.InfoS("Wrote packet filter rules for pods", "tool", tool, "rules", len(want) > 0)
	return nil
}

// chainsOf returns our two chains with the rules for want.
func chainsOf(want []Rules) []chain {
	forward := chain{table: "filter", base: "FORWARD", name: ForwardChain, docker: dockerForwards}
	masq := chain{table: "nat", base: "POSTROUTING", name: masqChain}
	for _, r := range want {
		forward.jump = "-j " + ForwardChain
		forward.rules = append(forward.rules, fmt.Sprintf("-s %s -j ACCEPT", r.PodCIDR), fmt.Sprintf("-d %s -j ACCEPT", r.PodCIDR))
		if len(r.NonMasquerade) == 0 {
			continue
		}
		masq.jump = fmt.Sprintf("-s %s -j %s", r.PodCIDR, masqChain)
		for _, p := range r.NonMasquerade {
			masq.rules = append(masq.rules, fmt.Sprintf("-d %s -j RETURN", p))
		}
		masq.rules = append(masq.rules, "-j MASQUERADE")
	}
	return []chain{forward, masq}
}

// dockerForwards recognizes Docker's rules in FORWARD, except the administrator's.
func dockerForwards(rule string) bool {
	target := targetOf(rule)
	return strings.HasPrefix(target, "DOCKER") && target != "DOCKER-USER"
}

// direct returns our chain that lets packets pass to pods on a guarded bridge. Docker's rule for each container, since release 28, is
// "-d ADDRESS ! -i BRIDGE -j DROP" (moby, libnetwork/drivers/bridge/internal/iptabler/endpoint.go).
func direct(want []Rules) chain {
	c := chain{table: "raw", base: "PREROUTING", name: directChain}
	var bridges []string
	for _, r := range want {
		if r.Guarded != "" {
			c.jump = "-j " + directChain
			c.rules = append(c.rules, fmt.Sprintf("-d %s -j ACCEPT", r.PodCIDR))
			bridges = append(bridges, "! -i "+r.Guarded+" ")
		}
	}
	c.docker = func(rule string) bool {
		return targetOf(rule) == "DROP" && slices.ContainsFunc(bridges, func(b string) bool { return strings.Contains(rule, b) })
	}
	return c
}

// chains returns the chains to compare. The table raw is read only if it has to have a chain of ours, or may have one: reading it loads it.
func (f *Filter) chains(tool string, want []Rules) []chain {
	chains, raw := chainsOf(want), direct(want)
	if raw.jump != "" || !f.rawOff[tool] {
		chains = append(chains, raw)
	}
	return chains
}

// Difference compares one of our chains with the host's.
type Difference struct {
	Tool, Chain string // iptables or ip6tables
	Differs     bool   // its rules, or the jump to it, are missing or changed
	// Dropped says that pods' packets are lost because of it: the chain is the one that accepts them, and the policy of FORWARD is DROP.
	Dropped bool
}

// tables are the tables that contain our chains.
var tables = []string{"filter", "nat"}

// Saved is the output of iptables-save, by tool and table: "ip6tables nat".
type Saved map[string]string

// Save reads this host's tables. The error is that of iptables: a host without IPv6 needs no ip6tables.
func Save(ctx context.Context, run command.Runner) (saved Saved, err error) {
	saved = Saved{}
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, table := range tables {
			out, failed := run.Run(ctx, nil, tool+"-save", "-t", table)
			if failed != nil && tool == "iptables" {
				err = failed
			}
			saved[tool+" "+table] = string(out)
		}
	}
	return saved, err
}

// Compare checks each chain that want needs, IPv4 first. It is pure.
func Compare(want []Rules, saved Saved) (out []Difference) {
	for _, tool := range []string{"iptables", "ip6tables"} {
		rules := slices.DeleteFunc(slices.Clone(want), func(r Rules) bool { return r.PodCIDR.Addr().Is4() != (tool == "iptables") })
		if len(rules) == 0 {
			continue
		}
		for _, c := range chainsOf(rules) {
			text := saved[tool+" "+c.table]
			differs := len(c.diff(text)) > 0
			out = append(out, Difference{Tool: tool, Chain: c.name, Differs: differs,
				Dropped: differs && c.name == ForwardChain && strings.Contains(text, ":FORWARD DROP")})
		}
	}
	return out
}

// diff returns the lines for iptables-restore --noflush that correct the table in the output of iptables-save; none if it is correct.
func (c chain) diff(saved string) []string {
	exists, rules, base := c.read(saved)
	var jumps []string // all jumps to our chain
	at := -1           // index of the correct one
	docker := -1       // index of Docker's first rule, not counting our jumps
	others := 0
	for i, r := range base {
		switch targetOf(r) {
		case c.name:
			jumps = append(jumps, r)
			if r == c.jump {
				at = i
			}
		default:
			if docker < 0 && c.docker != nil && c.docker(r) {
				docker = others
			}
			others++
		}
	}
	if c.jump == "" && !exists && len(jumps) == 0 {
		return nil
	}
	jumpRight := c.jump != "" && len(jumps) == 1 && at >= 0 && (docker < 0 || at <= docker)
	if jumpRight && slices.Equal(rules, c.rules) {
		return nil
	}
	// This line creates or flushes our chain.
	lines := []string{":" + c.name + " - [0:0]"}
	for _, r := range c.rules {
		lines = append(lines, "-A "+c.name+" "+r)
	}
	if !jumpRight {
		for _, j := range jumps {
			lines = append(lines, "-D "+c.base+" "+j)
		}
	}
	switch {
	case c.jump == "":
		lines = append(lines, "-X "+c.name)
	case !jumpRight:
		// Directly before Docker's rules, so that rules of the administrator, in DOCKER-USER and before, take effect first.
		lines = append(lines, fmt.Sprintf("-I %s %d %s", c.base, max(docker, 0)+1, c.jump))
	}
	return lines
}

// read finds our chain and the rules of the base chain in the output of iptables-save.
func (c chain) read(saved string) (exists bool, rules, base []string) {
	for _, line := range strings.Split(saved, "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, ":"+c.name+" ") {
			exists = true
		}
		if r, ok := strings.CutPrefix(line, "-A "+c.name+" "); ok {
			rules = append(rules, r)
		}
		if r, ok := strings.CutPrefix(line, "-A "+c.base+" "); ok {
			base = append(base, r)
		}
	}
	return exists, rules, base
}

// targetOf returns the target of a rule in the output of iptables-save.
func targetOf(rule string) string {
	fields := strings.Fields(rule)
	for i, f := range fields[:max(len(fields)-1, 0)] {
		if f == "-j" || f == "-g" {
			return fields[i+1]
		}
	}
	return ""
}

// set writes a sysctl unless it already has the value.
func (f *Filter) set(name, value string) error {
	p := filepath.Join(f.sysctl, filepath.FromSlash(name))
	have, err := os.ReadFile(p)
	if err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err == nil {
		err = os.WriteFile(p, []byte(value), 0)
	}
	if err != nil {
		return fmt.Errorf("cannot switch on forwarding (sysctl %s): %w", strings.ReplaceAll(name, "/", "."), err)
	}
	return nil
}
