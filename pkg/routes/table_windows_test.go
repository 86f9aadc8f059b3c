package routes

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// neighbour returns an address in a network of this host, as other nodes have.
func neighbour(t *testing.T) netip.Addr {
	t.Helper()
	rows, err := winipcfg.GetUnicastIPAddressTable(windows.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		own := rows[i].Address.Addr()
		if p, err := own.Prefix(int(rows[i].OnLinkPrefixLength)); err == nil && !own.IsLoopback() && p.Bits() < 31 {
			if next := own.Next(); p.Contains(next) {
				return next
			}
			return own.Prev()
		}
	}
	t.Skip("this host has no network but loopback")
	return netip.Addr{}
}

func needIPHelper(t *testing.T) {
	t.Helper()
	if err := available("CreateIpForwardEntry2"); err != nil {
		t.Skipf("Wine cannot change routes without the simulator of IP Helper: %v", err)
	}
}

func TestTable(t *testing.T) {
	needIPHelper(t)
	ctx := t.Context()
	table, err := NewRoutingTable()
	if err != nil {
		t.Fatal(err)
	}
	peer := neighbour(t)
	route := func(dst string, via netip.Addr) Route {
		return Route{Dst: netip.MustParsePrefix(dst), Via: via, Peer: peer, Node: "other"}
	}
	one, two, moved := route("10.244.1.0/24", peer), route("10.244.2.0/24", peer), route("10.244.2.0/24", peer.Next())
	listed := func() (lines []string) {
		host, err := table.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range host.Ours {
			lines = append(lines, Route{Dst: r.Dst, Via: r.Via}.String())
		}
		return lines
	}
	if ours := listed(); len(ours) > 0 {
		t.Fatalf("routes of ours on a fresh host: %q", ours)
	}
	for _, step := range []struct {
		name string
		do   Diff
		want []string
	}{
		{"add", Diff{Add: []Route{one, two}}, []string{"10.244.1.0/24 via " + peer.String(), "10.244.2.0/24 via " + peer.String()}},
		{"add again", Diff{Add: []Route{one}}, []string{"10.244.1.0/24 via " + peer.String(), "10.244.2.0/24 via " + peer.String()}},
		{"replace", Diff{Replace: []Replacement{{Old: two, New: moved}}}, []string{"10.244.1.0/24 via " + peer.String(), "10.244.2.0/24 via " + peer.Next().String()}},
		{"remove", Diff{Remove: []Route{one, moved}}, nil},
		{"remove again", Diff{Remove: []Route{one}}, nil},
	} {
		if err := table.Change(ctx, step.do); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if got := listed(); strings.Join(got, ", ") != strings.Join(step.want, ", ") {
			t.Errorf("%s: the table has %q, want %q", step.name, got, step.want)
		}
	}
	far := Route{Dst: netip.MustParsePrefix("10.244.3.0/24"), Via: netip.MustParseAddr("203.0.113.1"), Peer: netip.MustParseAddr("203.0.113.1"), Node: "far"}
	for _, d := range []Diff{{Add: []Route{far}}, {Replace: []Replacement{{Old: one, New: far}}}} {
		if err := table.Change(ctx, d); err == nil || !strings.Contains(err.Error(), "no interface of this host") {
			t.Errorf("a peer that no interface leads to: %v", err)
		}
	}
	mixed := Route{Dst: netip.MustParsePrefix("10.244.4.0/24"), Via: netip.MustParseAddr("fd00::1"), Peer: peer, Node: "other"}
	if err := table.Change(ctx, Diff{Add: []Route{mixed}}); err == nil || !strings.Contains(err.Error(), "cannot add route") {
		t.Errorf("a next hop of the other family: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := table.Change(ended, Diff{Add: []Route{one}}); err == nil {
		t.Error("added although the context has ended")
	}
}

func TestTableChanges(t *testing.T) {
	needIPHelper(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	table, err := NewRoutingTable()
	if err != nil {
		t.Fatal(err)
	}
	hints, err := table.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	peer := neighbour(t)
	one := Route{Dst: netip.MustParsePrefix("10.244.9.0/24"), Via: peer, Peer: peer}
	for _, d := range []Diff{{Add: []Route{one}}, {Remove: []Route{one}}} {
		if err := table.Change(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	<-hints // for the removed route
}

// TestWithoutIPHelper: if this Windows lacks a procedure, the error names it, and nothing panics.
func TestWithoutIPHelper(t *testing.T) {
	if err := available("GetIpForwardTable2", "NoSuchProcedure"); err == nil || !strings.Contains(err.Error(), "NoSuchProcedure") {
		t.Errorf("got %v", err)
	}
	table, _ := NewRoutingTable()
	if available("CreateIpForwardEntry2") == nil {
		return
	}
	if err := table.Change(t.Context(), Diff{Remove: []Route{{Dst: netip.MustParsePrefix("10.244.1.0/24")}}}); err == nil {
		t.Error("changed routes without a procedure for it")
	}
	if _, err := table.List(t.Context()); err != nil {
		t.Errorf("reading needs no more than Wine has: %v", err)
	}
}
