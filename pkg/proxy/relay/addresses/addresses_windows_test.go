package addresses

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// loopback returns the name of an interface that every host has.
func loopback(t *testing.T) string {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if link.Flags&net.FlagLoopback != 0 {
			return link.Name
		}
	}
	t.Fatal("no loopback interface")
	return ""
}

func needIPHelper(t *testing.T) {
	t.Helper()
	if err := present("CreateUnicastIpAddressEntry"); err != nil {
		t.Skipf("Wine cannot change addresses without the simulator of IP Helper: %v", err)
	}
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestIPHelperAddresses(t *testing.T) {
	needIPHelper(t)
	ctx := t.Context()
	first, err := New(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	before, err := first.Host()
	if err != nil {
		t.Fatal(err)
	}
	held := func(a relay.Addresses) (out []netip.Addr) {
		rows, err := a.(*ipHelperAddresses).held()
		if err != nil {
			t.Fatal(err)
		}
		for addr, ours := range rows {
			if ours {
				out = append(out, addr)
			}
		}
		slices.SortFunc(out, netip.Addr.Compare)
		return out
	}
	for _, want := range [][]netip.Addr{addrs("10.96.0.1", "10.96.0.10"), addrs("10.96.0.1", "10.96.0.10"), addrs("10.96.0.10", "10.96.0.11")} {
		if _, err := first.Set(ctx, relay.Local{Addresses: want}); err != nil {
			t.Fatal(err)
		}
		if got := held(first); !slices.Equal(got, want) {
			t.Errorf("the interface holds %v, want %v", got, want)
		}
	}
	next, err := New(loopback(t)) // the proxy after one that was killed
	if err != nil {
		t.Fatal(err)
	}
	if host, err := next.Host(); err != nil || slices.Contains(host, netip.MustParseAddr("10.96.0.10")) || len(host) != len(before) {
		t.Errorf("service addresses count as the host's own: %v %v, before %v", host, err, before)
	}
	if _, err := next.Set(ctx, relay.Local{}); err != nil {
		t.Fatal(err)
	}
	if got := held(next); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
	gone := &ipHelperAddresses{name: "vEthernet (gone)"} // removed after the proxy's start
	if _, err := gone.Set(ctx, relay.Local{Addresses: addrs("10.96.0.1")}); err == nil || !strings.Contains(err.Error(), "vEthernet (gone)") {
		t.Errorf("an address on an interface that is gone: %v", err)
	}
	if _, err := gone.Host(); err == nil {
		t.Error("an interface that is gone holds addresses")
	}
}

// TestStrongHost: replies from service addresses may leave through other interfaces while there are such addresses. An
// administrator's settings stay.
func TestStrongHost(t *testing.T) {
	needIPHelper(t)
	a, err := New(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	luid, err := a.(*ipHelperAddresses).luid()
	if err != nil {
		t.Fatal(err)
	}
	model := func(family winipcfg.AddressFamily) HostModel {
		row, err := luid.IPInterface(family)
		if err != nil {
			t.Fatal(err)
		}
		return HostModel{row.ForwardingEnabled, row.WeakHostSend, row.WeakHostReceive}
	}
	set := func(want ...string) {
		t.Helper()
		if _, err := a.Set(t.Context(), relay.Local{Addresses: addrs(want...)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, forwarding := range []bool{false, true} {
		row, err := luid.IPInterface(windows.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		row.ForwardingEnabled, row.SitePrefixLength = forwarding, 0
		if err := row.Set(); err != nil {
			t.Fatal(err)
		}
		before := HostModel{Forwarding: forwarding}
		for range 2 {
			set("10.96.0.1")
			if got := model(windows.AF_INET); !got.Forwarding || !got.WeakSend {
				t.Errorf("answers from 10.96.0.1 leave only by its interface: %+v", got)
			}
			if got := model(windows.AF_INET6); got != (HostModel{}) {
				t.Errorf("IPv6 without a service address: %+v", got)
			}
		}
		set("fd00:96::1")
		if four, six := model(windows.AF_INET), model(windows.AF_INET6); four != before || !six.Forwarding || !six.WeakSend {
			t.Errorf("IPv4 %+v, want %+v; IPv6 %+v", four, before, six)
		}
		set()
		if four, six := model(windows.AF_INET), model(windows.AF_INET6); four != before || six != (HostModel{}) {
			t.Errorf("left behind: IPv4 %+v, want %+v; IPv6 %+v", four, before, six)
		}
	}
	row, err := luid.IPInterface(windows.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	row.ForwardingEnabled, row.SitePrefixLength = false, 0
	if err := row.Set(); err != nil {
		t.Fatal(err)
	}
}

func TestIPHelperChanges(t *testing.T) {
	needIPHelper(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	mine, err := New(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	hints, err := mine.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mine.Set(ctx, relay.Local{Addresses: addrs("10.96.0.1")}); err != nil {
		t.Fatal(err)
	}
	if _, err := mine.Set(ctx, relay.Local{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hints:
		t.Error("a hint of our own change")
	default:
	}
	if _, err := other.Set(ctx, relay.Local{Addresses: addrs("10.96.0.2")}); err != nil {
		t.Fatal(err)
	}
	<-hints // from the other one
	if _, err := other.Set(ctx, relay.Local{}); err != nil {
		t.Fatal(err)
	}
}

func TestNewAddressesWindows(t *testing.T) {
	if _, err := New("vEthernet (gone)"); err == nil || !strings.Contains(err.Error(), "vEthernet (gone)") {
		t.Errorf("an interface that is not there: %v", err)
	}
	if err := present("NoSuchProcedure"); err == nil || !strings.Contains(err.Error(), "NoSuchProcedure") {
		t.Errorf("a procedure that this Windows lacks: %v", err)
	}
	a, err := New(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	if present("CreateUnicastIpAddressEntry") == nil {
		return
	}
	if _, err := a.Set(t.Context(), relay.Local{}); err != nil {
		t.Errorf("nothing wanted, nothing there: %v", err)
	}
	if _, err := a.Set(t.Context(), relay.Local{Addresses: addrs("10.96.0.1")}); err == nil {
		t.Error("an address was added without a procedure for it")
	}
	if _, err := a.Host(); err != nil {
		t.Error(err)
	}
}
