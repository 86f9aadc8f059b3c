package app

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/proxy/relay"
)

// wallName is the name of the rules that block Windows' own servers at service addresses.
const wallName = "winkube service addresses"

// servers are the Windows servers that listen on all addresses of the host: the kernel's, which are SMB and http.sys
// (WinRM, IIS), Remote Desktop and the RPC endpoint mapper. The rules have no ports, so that the relay can serve any
// port.
var servers = []netsh.Block{{Program: "System"}, {Service: "TermService"}, {Service: "RpcEptMapper"}}

// wall are addresses at which only the proxy's services are reachable. On Linux, packet filter rules do that (ADR 14).
type wall struct {
	relay.Addresses
	script func(ctx context.Context, lines []string) (string, error)

	mu    sync.Mutex
	lines []string // as last written and confirmed; nil: unknown
	said  bool     // logged that the firewall did not accept them
}

// newWall returns addresses with a wall.
func newWall(addresses relay.Addresses, program *netsh.Program) *wall {
	return &wall{Addresses: addresses, script: program.Script}
}

// Set implements relay.Addresses. Rules are added before the first address and removed after the last one. If the
// firewall accepts no rules, the addresses are set anyway.
func (w *wall) Set(ctx context.Context, want relay.Local) (answers bool, err error) {
	host, failed := w.Host() // also fails if the adapter is missing, which Set recreates
	lines := wallLines(want, host)
	if failed == nil && len(lines) > 0 {
		w.write(ctx, lines)
	}
	if answers, err = w.Addresses.Set(ctx, want); err == nil && len(lines) == 0 {
		w.write(ctx, nil)
	}
	return answers, err
}

func (w *wall) write(ctx context.Context, lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lines != nil && slices.Equal(lines, w.lines) {
		return
	}
	w.lines = nil
	output, err := w.script(ctx, slices.Concat([]string{netsh.Disallow(wallName)}, lines, []string{netsh.Allowed(wallName)}))
	if strings.Contains(output, wallName) == (len(lines) > 0) {
		w.lines, w.said = append([]string{}, lines...), false
		return
	}
	if !w.said {
		klog.ErrorS(err, "Windows Firewall did not accept the rules for service addresses; servers of Windows (RDP, SMB, WinRM) may answer there", "name", wallName)
	}
	w.said = true
}

// maxPlaces is the number of addresses and ranges in one rule.
const maxPlaces = 200

// wallLines returns the rules for the addresses in want, without the host's own addresses.
func wallLines(want relay.Local, host []netip.Addr) (lines []string) {
	for places := range slices.Chunk(places(want, host), maxPlaces) {
		for _, one := range servers {
			one.Name, one.At = wallName, places
			lines = append(lines, one.Add())
		}
	}
	return lines
}

// places returns the ranges that contain a wanted address and none of the host's, and the wanted addresses outside of
// them; consecutive addresses form one range.
func places(want relay.Local, host []netip.Addr) (out []string) {
	var ranges []netip.Prefix
	for _, p := range want.Ranges {
		if slices.ContainsFunc(want.Addresses, p.Contains) && !slices.ContainsFunc(host, p.Contains) {
			ranges = append(ranges, p)
			out = append(out, p.Masked().String())
		}
	}
	var first, last netip.Addr
	end := func() {
		switch {
		case !first.IsValid():
		case first == last:
			out = append(out, first.String())
		default:
			out = append(out, first.String()+"-"+last.String())
		}
	}
	for _, addr := range want.Addresses { // sorted
		if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			continue
		}
		if !last.IsValid() || last.Next() != addr {
			end()
			first = addr
		}
		last = addr
	}
	end()
	return out
}
