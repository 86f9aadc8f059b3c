package iphelper

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unicode/utf16"
)

// Rows of netioapi.h, 64-bit: sizes, and offsets of the fields that the simulator uses. All other bytes of a row are kept unchanged.
const (
	routeSize     = 104  // MIB_IPFORWARD_ROW2
	addressSize   = 80   // MIB_UNICASTIPADDRESS_ROW
	interfaceSize = 168  // MIB_IPINTERFACE_ROW
	adapterSize   = 1352 // MIB_IF_ROW2

	routeLUID, routeIndex, routePrefix, routeBits, routeNextHop, routeMetric, routeProtocol = 0, 8, 12, 40, 44, 84, 88

	addressAddr, addressLUID, addressIndex, addressPrefixOrigin, addressSuffixOrigin = 0, 32, 40, 44, 48
	addressBits, addressSkip, addressDAD                                             = 60, 61, 64

	interfaceFamily, interfaceLUID, interfaceIndex, interfaceForwarding     = 0, 8, 16, 41
	interfaceWeakSend, interfaceWeakReceive, interfaceNoDefaults            = 42, 43, 166
	interfaceAutoMetric, interfaceSitePrefix, interfaceMetric, interfaceMTU = 44, 144, 148, 152
	interfaceConnected                                                      = 156

	adapterLUID, adapterIndex, adapterAlias, adapterDescription = 0, 8, 28, 542
	adapterMTU, adapterType, adapterOperStatus, adapterAdmin    = 1124, 1128, 1156, 1160
)

// Address families on Windows.
const (
	familyAny  = 0
	familyIPv4 = 2
	familyIPv6 = 23
)

var le = binary.LittleEndian

// sockaddr decodes a SOCKADDR_INET. It returns the zero Addr for any other family.
func sockaddr(b []byte) netip.Addr {
	switch le.Uint16(b) {
	case familyIPv4:
		return netip.AddrFrom4([4]byte(b[4:8]))
	case familyIPv6:
		return netip.AddrFrom16([16]byte(b[8:24]))
	}
	return netip.Addr{}
}

func putSockaddr(b []byte, a netip.Addr) {
	clear(b[:28])
	if a.Is4() {
		le.PutUint16(b, familyIPv4)
		copy(b[4:8], a.AsSlice())
		return
	}
	le.PutUint16(b, familyIPv6)
	copy(b[8:24], a.AsSlice())
}

// routeKey identifies a route: Windows has one route per prefix, next hop and interface.
type routeKey struct {
	luid   uint64
	prefix netip.Prefix
	via    netip.Addr
}

func (k routeKey) text(name string, metric uint32) string {
	return fmt.Sprintf("route %s via %s on %s metric %d", k.prefix, k.via, name, metric)
}

func keyOfRoute(row []byte) routeKey {
	addr := sockaddr(row[routePrefix:])
	return routeKey{le.Uint64(row[routeLUID:]), netip.PrefixFrom(addr, int(row[routeBits])), sockaddr(row[routeNextHop:])}
}

type addressKey struct {
	luid uint64
	addr netip.Addr
}

func keyOfAddress(row []byte) addressKey {
	return addressKey{le.Uint64(row[addressLUID:]), sockaddr(row[addressAddr:])}
}

type interfaceKey struct {
	family uint16
	luid   uint64
}

// utf16At decodes a zero-terminated string of at most n characters.
func utf16At(b []byte, n int) string {
	var units []uint16
	for i := range n {
		unit := le.Uint16(b[2*i:])
		if unit == 0 {
			break
		}
		units = append(units, unit)
	}
	return string(utf16.Decode(units))
}

func putUTF16(b []byte, text string) {
	for i, unit := range utf16.Encode([]rune(text)) {
		le.PutUint16(b[2*i:], unit)
	}
}

func familyOf(a netip.Addr) uint32 {
	if a.Is4() {
		return familyIPv4
	}
	return familyIPv6
}
