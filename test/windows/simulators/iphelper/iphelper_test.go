package iphelper

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

func routeRow(luid uint64, prefix, via string, metric uint32) []byte {
	row := make([]byte, routeSize)
	le.PutUint64(row[routeLUID:], luid)
	p := netip.MustParsePrefix(prefix)
	putSockaddr(row[routePrefix:], p.Addr())
	row[routeBits] = byte(p.Bits())
	putSockaddr(row[routeNextHop:], netip.MustParseAddr(via))
	le.PutUint32(row[routeMetric:], metric)
	return row
}

func addressRow(luid uint64, addr string, bits byte, skip byte) []byte {
	row := make([]byte, addressSize)
	putSockaddr(row[addressAddr:], netip.MustParseAddr(addr))
	le.PutUint64(row[addressLUID:], luid)
	row[addressBits], row[addressSkip] = bits, skip
	return row
}

func interfaceRow(luid uint64, site uint32, forwarding byte) []byte {
	row := make([]byte, interfaceSize)
	le.PutUint16(row[interfaceFamily:], familyIPv4)
	le.PutUint64(row[interfaceLUID:], luid)
	le.PutUint32(row[interfaceSitePrefix:], site)
	row[interfaceForwarding] = forwarding
	return row
}

// read returns the tables on top of Wine's rows: one adapter, one address and one route of LUID 1.
func read(t *testing.T, h *Host) (routes, addresses string) {
	t.Helper()
	adapters := make([]byte, adapterSize)
	le.PutUint64(adapters[adapterLUID:], 1)
	le.PutUint32(adapters[adapterIndex:], 2)
	putUTF16(adapters[adapterAlias:], "eth0")
	any := []byte{0, 0, 0, 0}
	if result, rows := h.Call("GetIfTable2Ex", [][]byte{any, adapters}); result != 0 || len(rows)%adapterSize != 0 {
		t.Fatalf("adapters: %d, %d bytes", result, len(rows))
	}
	_, rows := h.Call("GetIpForwardTable2", [][]byte{any, routeRow(1, "0.0.0.0/0", "192.168.1.1", 100)})
	for row := range chunks(rows, routeSize) {
		routes += keyOfRoute(row).prefix.String() + " "
	}
	_, rows = h.Call("GetUnicastIpAddressTable", [][]byte{any, addressRow(1, "192.168.1.5", 24, 0)})
	for row := range chunks(rows, addressSize) {
		addresses += keyOfAddress(row).addr.String() + " "
	}
	return routes, addresses
}

func chunks(rows []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for ; len(rows) >= size && yield(rows[:size]); rows = rows[size:] {
		}
	}
}

// TestCalls makes a sequence of calls on one host: each has the result that Microsoft's pages name.
func TestCalls(t *testing.T) {
	log := &calls.Log{}
	h := New(log)
	read(t, h)
	h.SetAdapter("vEthernet (cbr0)", true, []netip.Prefix{netip.MustParsePrefix("10.244.1.2/24")})
	own := h.adapters[1].luid
	for _, test := range []struct {
		function string
		row      []byte
		want     uint32
	}{
		{"CreateIpForwardEntry2", routeRow(1, "10.244.2.0/24", "192.168.1.2", 256), 0},
		{"CreateIpForwardEntry2", routeRow(1, "10.244.2.0/24", "192.168.1.2", 256), errorObjectExists},
		{"CreateIpForwardEntry2", routeRow(1, "10.244.2.0/24", "192.168.1.3", 256), 0}, // another next hop makes another route
		{"CreateIpForwardEntry2", routeRow(1, "10.244.2.1/24", "192.168.1.2", 256), errorInvalidParameter},
		{"CreateIpForwardEntry2", routeRow(1, "10.244.3.0/24", "fd00::1", 256), errorInvalidParameter},
		{"CreateIpForwardEntry2", routeRow(1, "10.244.3.0/24", "192.168.1.2", 0xffffffff), errorInvalidParameter},
		{"CreateIpForwardEntry2", routeRow(0, "10.244.3.0/24", "192.168.1.2", 256), errorInvalidParameter},
		{"CreateIpForwardEntry2", routeRow(9, "10.244.3.0/24", "192.168.1.2", 256), errorNotFound},
		{"CreateIpForwardEntry2", routeRow(1, "0.0.0.0/0", "192.168.1.1", 256), errorObjectExists}, // Wine's route
		{"DeleteIpForwardEntry2", routeRow(1, "10.244.2.0/24", "192.168.1.3", 256), 0},
		{"DeleteIpForwardEntry2", routeRow(1, "10.244.2.0/24", "192.168.1.3", 256), errorNotFound},
		{"DeleteIpForwardEntry2", routeRow(1, "0.0.0.0/0", "192.168.1.1", 256), 0},
		{"CreateUnicastIpAddressEntry", addressRow(1, "10.96.0.10", 255, 1), 0},
		{"CreateUnicastIpAddressEntry", addressRow(1, "10.96.0.10", 32, 1), errorObjectExists},
		{"CreateUnicastIpAddressEntry", addressRow(1, "10.96.0.11", 33, 1), errorInvalidParameter},
		{"CreateUnicastIpAddressEntry", addressRow(1, "0.0.0.0", 32, 1), errorInvalidParameter},
		{"CreateUnicastIpAddressEntry", addressRow(9, "10.96.0.11", 32, 1), errorNotFound},
		{"CreateUnicastIpAddressEntry", addressRow(own, "fd00::5", 64, 0), 0},
		{"DeleteUnicastIpAddressEntry", addressRow(1, "10.96.0.99", 32, 1), errorNotFound},
		{"SetIpInterfaceEntry", interfaceRow(own, 64, 1), errorInvalidParameter},
		{"SetIpInterfaceEntry", interfaceRow(own, 0, 1), 0},
		{"SetIpInterfaceEntry", interfaceRow(9, 0, 1), errorNotFound},
		{"DeleteProxyArpEntry", nil, errorInvalidParameter},
	} {
		if got, _ := h.Call(test.function, [][]byte{test.row}); got != test.want {
			t.Errorf("%s: %d, want %d; %v", test.function, got, test.want, log.Calls()[len(log.Calls())-1])
		}
	}
	if got := log.Unknown(); len(got) != 1 || got[0].Function != "DeleteProxyArpEntry" {
		t.Errorf("unknown: %v", got)
	}
	const want = `adapter "vEthernet (cbr0)"
address 10.244.1.2/24 on "vEthernet (cbr0)"
address 10.96.0.10/32 on "eth0" skip as source
address fd00::5/64 on "vEthernet (cbr0)"
interface "vEthernet (cbr0)" IPv4 forwarding true
removed route 0.0.0.0/0 via 192.168.1.1 on "eth0" metric 0
route 10.244.2.0/24 via 192.168.1.2 on "eth0" metric 256
`
	if got := h.String(); got != want {
		t.Errorf("state:\n%s", got)
	}
	routes, addresses := read(t, h)
	if routes != "10.244.2.0/24 " || !strings.HasPrefix(addresses, "192.168.1.5 ") || strings.Count(addresses, " ") != 4 {
		t.Errorf("tables: routes %q, addresses %q", routes, addresses)
	}
	h.Reboot()
	if got := h.String(); got != "adapter \"vEthernet (cbr0)\"\n" {
		t.Errorf("after a reboot:\n%s", got)
	}
	if routes, addresses := read(t, h); routes != "0.0.0.0/0 " || addresses != "192.168.1.5 " {
		t.Errorf("tables after a reboot: routes %q, addresses %q", routes, addresses)
	}
}

// TestNotifications: a subscriber gets the answer, the initial notification, then each change of its kind.
func TestNotifications(t *testing.T) {
	h := New(&calls.Log{})
	read(t, h)
	heard := make(chan uint32, 10)
	go h.Subscribe(t.Context(), kindRoute, []byte{0, 0, 0, 0, 1, 0, 0, 0}, func(kind uint32, _ []byte) error {
		heard <- kind
		return nil
	})
	if result, got := <-heard, <-heard; result != 0 || got != initial {
		t.Errorf("the subscription's result is %d, then %d, want 0 and %d", result, got, initial)
	}
	h.Call("CreateUnicastIpAddressEntry", [][]byte{addressRow(1, "10.96.0.10", 32, 1)})
	h.Call("CreateIpForwardEntry2", [][]byte{routeRow(1, "10.244.2.0/24", "192.168.1.2", 256)})
	h.Call("DeleteIpForwardEntry2", [][]byte{routeRow(1, "10.244.2.0/24", "192.168.1.2", 256)})
	for _, want := range []uint32{added, deleted} {
		if got := <-heard; got != want {
			t.Errorf("heard %d, want %d", got, want)
		}
	}
}
