package otherproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/command"
)

// fixLinux removes the rules of every mode (upstream cmd/kube-proxy/app/server_linux.go, platformCleanup).
const fixLinux = "stop kube-proxy if it still runs, then run kube-proxy --cleanup with upstream's program, or restart the host"

// dummy is the interface with the Services' addresses of kube-proxy's mode ipvs.
const dummy = "kube-ipvs0"

// entries are the chains of table nat that every connection to a Service passes first. The other chains of kube-proxy
// are reached from these alone, and some of the rest are the kubelet's.
var entries = []string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-NODE-PORT"}

// linux reads a Linux host.
type linux struct {
	run  command.Runner
	proc string // /proc/net
	// held is the number of addresses of an interface; an error: it does not exist.
	held func(name string) (int, error)
}

func (l linux) look(ctx context.Context) (f Found) {
	for _, family := range []struct{ tool, loaded string }{{"iptables", "ip_tables_names"}, {"ip6tables", "ip6_tables_names"}} {
		l.iptables(ctx, &f, family.tool, family.loaded)
	}
	l.nftables(ctx, &f)
	l.ipvs(&f)
	if len(f.Traces) > 0 {
		f.Fix = fixLinux
	}
	return f
}

// iptables reads both variants, because either may have rules, whichever the host uses. Hosts with one variant may know
// it by the plain name alone.
func (l linux) iptables(ctx context.Context, f *Found, tool, loaded string) {
	nft, legacy := l.saved(ctx, f, tool+"-nft", "-t", "nat"), false
	switch names, err := os.ReadFile(filepath.Join(l.proc, loaded)); {
	case err == nil && slices.Contains(strings.Fields(string(names)), "nat"): // reading a missing table would load it
		legacy = l.saved(ctx, f, tool+"-legacy", "-t", "nat")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		f.Unread = append(f.Unread, "tables of "+tool+"-legacy: "+err.Error())
	}
	if !nft && !legacy {
		l.saved(ctx, f, tool) // without -t: the tables that are loaded
	}
}

// saved adds the rules that a variant of iptables has; false: the host has no such program.
func (l linux) saved(ctx context.Context, f *Found, variant string, args ...string) bool {
	out, err := l.run.Run(ctx, nil, variant+"-save", args...)
	switch {
	case errors.Is(err, command.ErrNotFound):
		return false
	case unsupported(err):
	case err != nil:
		f.Unread = append(f.Unread, "rules of kube-proxy: "+err.Error())
	default:
		if n := rulesIn(string(out)); n > 0 {
			f.Traces = append(f.Traces, count(n, "rule", "rules")+" of "+variant)
		}
	}
	return true
}

// unsupported reports that the kernel has no nftables, so no rules.
func unsupported(err error) bool {
	var exit *command.ExitError
	return errors.As(err, &exit) && strings.Contains(exit.Output, "Protocol not supported")
}

// rulesIn counts the rules that lead to Services in the output of iptables-save.
func rulesIn(saved string) (n int) {
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		if rule, ok := strings.CutPrefix(line, "-A "); ok && table == "nat" {
			chain, _, _ := strings.Cut(rule, " ")
			if slices.Contains(entries, chain) {
				n++
			}
		}
	}
	return n
}

// nftables looks for the tables of kube-proxy's mode nftables, one for each family.
func (l linux) nftables(ctx context.Context, f *Found) {
	out, err := l.run.Run(ctx, nil, "nft", "-j", "list", "tables")
	var families []string
	switch {
	case errors.Is(err, command.ErrNotFound), unsupported(err):
		return
	case err == nil:
		families, err = tablesIn(out)
	default: // an nft without JSON
		var exit *command.ExitError
		if !errors.As(err, &exit) || !strings.Contains(exit.Output, "JSON") {
			break
		}
		if out, err = l.run.Run(ctx, nil, "nft", "list", "tables"); err == nil {
			families = tablesInText(string(out))
		}
	}
	if err != nil {
		f.Unread = append(f.Unread, "tables of kube-proxy in nftables: "+err.Error())
	}
	for _, family := range families {
		f.Traces = append(f.Traces, fmt.Sprintf("table %s %s of nftables", family, nftTable))
	}
}

// nftTable is the name of kube-proxy's tables (upstream pkg/proxy/nftables/proxier.go).
const nftTable = "kube-proxy"

// tablesIn returns the families that have kube-proxy's table, from `nft -j list tables` (libnftables-json(5)).
func tablesIn(out []byte) (families []string, err error) {
	var listed struct {
		Nftables []struct {
			Table struct{ Family, Name string }
		}
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		return nil, fmt.Errorf("nft -j list tables: %w", err)
	}
	for _, entry := range listed.Nftables {
		if entry.Table.Name == nftTable {
			families = append(families, entry.Table.Family)
		}
	}
	return families, nil
}

// tablesInText reads `nft list tables`.
func tablesInText(out string) (families []string) {
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "table" && fields[2] == nftTable {
			families = append(families, fields[1])
		}
	}
	return families
}

// ipvs counts virtual servers. Without kube-proxy's interface they belong to another program.
func (l linux) ipvs(f *Found) {
	addresses, err := l.held(dummy)
	if err != nil {
		return
	}
	servers := 0
	switch table, err := os.ReadFile(filepath.Join(l.proc, "ip_vs")); {
	case err == nil:
		servers = serversIn(string(table))
	case !errors.Is(err, fs.ErrNotExist):
		f.Unread = append(f.Unread, "virtual servers of IPVS: "+err.Error())
	}
	if addresses+servers > 0 {
		f.Traces = append(f.Traces, fmt.Sprintf("%s at interface %s and %s of IPVS", count(addresses, "address", "addresses"), dummy, count(servers, "virtual server", "virtual servers")))
	}
}

// serversIn counts the virtual servers in /proc/net/ip_vs: their lines begin with the protocol, those of the servers
// behind them with an arrow.
func serversIn(table string) (n int) {
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) > 0 && slices.Contains([]string{"TCP", "UDP", "SCTP", "FWM"}, fields[0]) {
			n++
		}
	}
	return n
}
