package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/command"
)

// Chain is one chain of a Set.
type Chain struct {
	Table, Name string
	Rules       []string // as iptables-save prints them, without "-A NAME"
}

// Jump leads from a built-in chain to a chain of a Set.
type Jump struct {
	Table, Base, To string
	Match           string // the rule as iptables-save prints it, without "-j TO"; "": none
	// Before recognizes rules of others that the jump must precede, by their target; nil: it may be anywhere.
	Before func(target string) bool
}

func (j *Jump) rule() string { return strings.TrimPrefix(j.Match+" -j "+j.To, " ") }

// Set is everything that one owner wants in the packet filter of one address family. The zero value wants nothing.
type Set struct {
	Chains []Chain
	Jumps  []Jump // at most one from each built-in chain
}

// OfOthers recognizes the targets of rules of Docker and kube-proxy, without the administrator's chain.
func OfOthers(target string) bool {
	return target != "DOCKER-USER" && (strings.HasPrefix(target, "DOCKER") || strings.HasPrefix(target, "KUBE-"))
}

// Keeper keeps a Set in the host's packet filter: it lists once, compares, and writes the difference. Every chain whose
// name begins with its prefix is its own. Use it from one goroutine.
type Keeper struct {
	run    command.Runner
	tool   string // iptables or ip6tables
	prefix string
	tables []string // in which chains of ours may be, in the order of writing

	known   bool     // the host has what have says
	holds   bool     // the host may have something of ours
	have    contents // what we wrote
	printed contents // how iptables-save of this host prints it
}

// contents are chains of ours, and the jumps to them, by table and chain. A jump's key is its built-in chain.
type contents struct {
	chains map[place][]string
	jumps  map[place]string
}

type place struct{ table, chain string }

func newContents() contents {
	return contents{chains: map[place][]string{}, jumps: map[place]string{}}
}

func (c *contents) empty() bool { return len(c.chains)+len(c.jumps) == 0 }

// NewKeeper returns a Keeper of the chains with a prefix in tables. tool is iptables or ip6tables, which run runs.
func NewKeeper(run command.Runner, tool, prefix string, tables ...string) *Keeper {
	return &Keeper{run: run, tool: tool, prefix: prefix, tables: tables}
}

// Holds reports whether the host may have something of ours: it was written or found, and not removed since.
func (k *Keeper) Holds() bool { return k.holds }

// Set makes the host match want. With compare it lists the host's rules first; otherwise it trusts what it wrote last,
// so that no program runs if want is the same. Each table is written in one transaction. After an error the host is
// listed next time. written reports whether rules were written. The error wraps command.ErrNotFound if the program is
// missing; a host that never had it needs no removal.
func (k *Keeper) Set(ctx context.Context, want Set, compare bool) (written bool, err error) {
	next := contentsOf(want)
	if k.known && (!compare || next.empty()) && k.have.equal(&next) {
		return false, nil
	}
	host, err := k.list(ctx)
	if errors.Is(err, command.ErrNotFound) && next.empty() && !k.holds {
		k.known = true
		return false, nil
	}
	if err != nil {
		return false, err
	}
	k.known = false
	var script strings.Builder
	for _, table := range k.tables {
		k.holds = k.holds || !next.empty() || len(host[table].chains)+len(host[table].jumps) > 0
		if lines := k.difference(table, want, host[table]); len(lines) > 0 {
			fmt.Fprintf(&script, "*%s\n%s\nCOMMIT\n", table, strings.Join(lines, "\n"))
		}
	}
	if script.Len() > 0 {
		if _, err := k.run.Run(ctx, []byte(script.String()), k.tool+"-restore", "--noflush", "-w", "5"); err != nil {
			return false, fmt.Errorf("cannot write packet filter rules: %w", err)
		}
		k.have = next
		if !next.empty() {
			if host, err = k.list(ctx); err != nil {
				return true, err
			}
		}
	}
	k.have, k.known, k.holds = next, true, !next.empty()
	k.learn(host)
	return script.Len() > 0, nil
}

// learn records how this host prints our rules, since programs and kernels differ in that.
func (k *Keeper) learn(host map[string]*listing) {
	k.printed = newContents()
	for at := range k.have.chains {
		if rules, ok := host[at.table].chains[at.chain]; ok {
			k.printed.chains[at] = rules
		}
	}
	for at := range k.have.jumps {
		if rules := host[at.table].jumps[at.chain]; len(rules) == 1 {
			k.printed.jumps[at] = rules[0]
		}
	}
}

func contentsOf(s Set) contents {
	c := newContents()
	for _, chain := range s.Chains {
		c.chains[place{chain.Table, chain.Name}] = chain.Rules
	}
	for _, j := range s.Jumps {
		c.jumps[place{j.Table, j.Base}] = j.rule()
	}
	return c
}

func (c *contents) equal(o *contents) bool {
	return maps.EqualFunc(c.chains, o.chains, slices.Equal[[]string]) && maps.Equal(c.jumps, o.jumps)
}

// listing is one table of the host.
type listing struct {
	chains map[string][]string // ours
	base   map[string][]string // rules of all chains that are not ours
	jumps  map[string][]string // to chains of ours, by the chain that they are in
}

// list reads all tables that the host uses: to name one would load it.
func (k *Keeper) list(ctx context.Context) (map[string]*listing, error) {
	saved, err := k.run.Run(ctx, nil, k.tool+"-save")
	if errors.Is(err, command.ErrNotFound) {
		return nil, fmt.Errorf("%s is missing on this host; install the package iptables: %w", k.tool, err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list packet filter rules: %w", err)
	}
	out := map[string]*listing{}
	for _, table := range k.tables {
		out[table] = &listing{chains: map[string][]string{}, base: map[string][]string{}, jumps: map[string][]string{}}
	}
	table := ""
	for line := range strings.Lines(string(saved)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		if l := out[table]; l != nil {
			l.read(line, k.prefix)
		}
	}
	return out, nil
}

// read adds a line of iptables-save.
func (l *listing) read(line, prefix string) {
	if name, ok := strings.CutPrefix(line, ":"); ok {
		if name, _, _ = strings.Cut(name, " "); strings.HasPrefix(name, prefix) {
			l.chains[name] = nil
		}
		return
	}
	rest, ok := strings.CutPrefix(line, "-A ")
	if !ok {
		return
	}
	name, rule, _ := strings.Cut(rest, " ")
	if strings.HasPrefix(name, prefix) {
		l.chains[name] = append(l.chains[name], rule)
		return
	}
	l.base[name] = append(l.base[name], rule)
	if strings.HasPrefix(targetOf(rule), prefix) {
		l.jumps[name] = append(l.jumps[name], rule)
	}
}

// same reports whether the host's rules of a chain are the wanted ones: as we write them, or as this host printed them
// after we wrote them.
func (k *Keeper) same(at place, want, host []string) bool {
	return slices.Equal(want, host) || slices.Equal(k.have.chains[at], want) && len(host) > 0 && slices.Equal(k.printed.chains[at], host)
}

// difference returns the lines for iptables-restore --noflush that correct one table; none if it is correct.
func (k *Keeper) difference(table string, want Set, host *listing) (lines []string) {
	wanted := map[string]bool{}
	var rules []string
	for _, c := range want.Chains {
		if c.Table != table {
			continue
		}
		wanted[c.Name] = true
		if have, ok := host.chains[c.Name]; ok && k.same(place{table, c.Name}, c.Rules, have) {
			continue
		}
		lines = append(lines, ":"+c.Name+" - [0:0]") // creates or flushes it
		for _, r := range c.Rules {
			rules = append(rules, "-A "+c.Name+" "+r)
		}
	}
	lines = append(lines, rules...)
	jumps := map[string]*Jump{}
	for i, j := range want.Jumps {
		if j.Table == table {
			jumps[j.Base] = &want.Jumps[i]
		}
	}
	for _, base := range slices.Sorted(maps.Keys(host.base)) {
		if jumps[base] == nil {
			for _, rule := range host.jumps[base] {
				lines = append(lines, "-D "+base+" "+rule)
			}
		}
	}
	for _, base := range slices.Sorted(maps.Keys(jumps)) {
		lines = append(lines, k.jump(jumps[base], host)...)
	}
	var stale []string
	for _, name := range slices.Sorted(maps.Keys(host.chains)) {
		if !wanted[name] {
			lines = append(lines, ":"+name+" - [0:0]")
			stale = append(stale, "-X "+name)
		}
	}
	return append(lines, stale...)
}

// jump returns the lines that correct one jump.
func (k *Keeper) jump(j *Jump, host *listing) (lines []string) {
	at, first, others := -1, -1, 0 // of the jump, of the first rule that it must precede, both without our jumps
	for _, rule := range host.base[j.Base] {
		target := targetOf(rule)
		if strings.HasPrefix(target, k.prefix) {
			at = others
			continue
		}
		if first < 0 && j.Before != nil && j.Before(target) {
			first = others
		}
		others++
	}
	key, have := place{j.Table, j.Base}, host.jumps[j.Base]
	right := len(have) == 1 && (have[0] == j.rule() || k.have.jumps[key] == j.rule() && k.printed.jumps[key] == have[0])
	if right && (first < 0 || at <= first) {
		return nil
	}
	for _, rule := range have {
		lines = append(lines, "-D "+j.Base+" "+rule)
	}
	return append(lines, fmt.Sprintf("-I %s %d %s", j.Base, max(first, 0)+1, j.rule()))
}
