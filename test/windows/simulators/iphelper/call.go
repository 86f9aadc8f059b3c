package iphelper

import (
	"fmt"
	"net/netip"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// outcome is the result of a call.
type outcome struct {
	result  uint32
	row     []byte
	detail  string
	unknown bool
}

func refuse(code uint32, format string, args ...any) outcome {
	return outcome{result: code, detail: fmt.Sprintf(format, args...)}
}

// Call serves the shim: fields are the function's row or, for a table, the family and Wine's rows. It returns the Win32 error and the row
// or rows.
func (h *Host) Call(function string, fields [][]byte) (result uint32, out []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text, o := h.dispatch(function, fields)
	if tables[function] {
		h.reads[function]++
	}
	if !tables[function] || o.result != 0 {
		h.log.Add(calls.Call{Service: "iphelper", Function: function, Args: text, Result: o.result, Detail: o.detail, Unknown: o.unknown})
	}
	return o.result, o.row
}

// Reads returns how often the function read its table.
func (h *Host) Reads(function string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reads[function]
}

// tables are read too often to be logged.
var tables = map[string]bool{"GetIpForwardTable2": true, "GetUnicastIpAddressTable": true, "GetIpInterfaceTable": true, "GetIfTable2Ex": true}

func (h *Host) dispatch(function string, fields [][]byte) ([]string, outcome) {
	if tables[function] {
		if len(fields) != 2 || len(fields[0]) != 4 {
			return nil, outcome{result: errorInvalidParameter, detail: "want a family and rows", unknown: true}
		}
		return nil, h.table(function, le.Uint32(fields[0]), fields[1])
	}
	sizes := map[string]int{"CreateIpForwardEntry2": routeSize, "SetIpForwardEntry2": routeSize, "DeleteIpForwardEntry2": routeSize, "GetIpForwardEntry2": routeSize,
		"CreateUnicastIpAddressEntry": addressSize, "SetUnicastIpAddressEntry": addressSize, "DeleteUnicastIpAddressEntry": addressSize,
		"GetUnicastIpAddressEntry": addressSize, "GetIpInterfaceEntry": interfaceSize, "SetIpInterfaceEntry": interfaceSize,
		"ConvertInterfaceIndexToLuid": 16, "ConvertInterfaceLuidToIndex": 16, "SetCurrentThreadCompartmentId": 4}
	size, ok := sizes[function]
	if !ok || len(fields) != 1 || len(fields[0]) != size {
		return nil, outcome{result: errorInvalidParameter, detail: function + " is not simulated for such a row", unknown: true}
	}
	row := append([]byte(nil), fields[0]...)
	switch size {
	case routeSize:
		key, fault := h.routeKey(row)
		args := []string{key.text(h.name(key.luid), le.Uint32(row[routeMetric:]))}
		if fault.result != 0 {
			return args, fault
		}
		return args, h.route(function, key, row)
	case addressSize:
		key, fault := h.addressKey(row)
		args := []string{fmt.Sprintf("%s/%d on %s", key.addr, row[addressBits], h.name(key.luid))}
		if fault.result != 0 {
			return args, fault
		}
		return args, h.address(function, key, row)
	case interfaceSize:
		return h.ipInterface(function, row)
	case 16:
		return nil, h.convert(row)
	}
	return []string{fmt.Sprint(le.Uint32(row))}, outcome{}
}

// routeKey validates the fields that identify a route.
func (h *Host) routeKey(row []byte) (routeKey, outcome) {
	a := h.find(le.Uint64(row[routeLUID:]), le.Uint32(row[routeIndex:]))
	if a != nil {
		le.PutUint64(row[routeLUID:], a.luid)
		le.PutUint32(row[routeIndex:], a.index)
	}
	key := keyOfRoute(row)
	switch {
	case !key.prefix.IsValid():
		return key, refuse(errorInvalidParameter, "DestinationPrefix is not valid")
	case key.prefix != key.prefix.Masked():
		return key, refuse(errorInvalidParameter, "DestinationPrefix %s has host bits", key.prefix)
	case !key.via.IsValid() || key.via.Is4() != key.prefix.Addr().Is4():
		return key, refuse(errorInvalidParameter, "NextHop is of another family than %s", key.prefix)
	case a == nil && key.luid == 0:
		return key, refuse(errorInvalidParameter, "neither InterfaceLuid nor InterfaceIndex")
	case a == nil:
		return key, refuse(errorNotFound, "there is no such interface")
	}
	return key, outcome{}
}

func (h *Host) route(function string, key routeKey, row []byte) outcome {
	have, changed := h.routes[key]
	exists := have != nil || !changed && h.realRoutes[key]
	switch function {
	case "CreateIpForwardEntry2":
		if exists {
			return refuse(errorObjectExists, "the route is there")
		}
		if le.Uint32(row[routeMetric:]) == 0xffffffff {
			return refuse(errorInvalidParameter, "Metric is not set") // InitializeIpForwardEntry's default
		}
		h.routes[key] = row
		h.tellRoute(true, key)
		h.notify(kindRoute, added, row)
	case "SetIpForwardEntry2":
		if !exists {
			return refuse(errorNotFound, "there is no such route")
		}
		h.routes[key] = row
		h.notify(kindRoute, changedParameter, row)
	case "DeleteIpForwardEntry2":
		if !exists {
			return refuse(errorNotFound, "there is no such route")
		}
		if h.realRoutes[key] {
			h.routes[key] = nil
		} else {
			delete(h.routes, key)
		}
		h.tellRoute(false, key)
		h.notify(kindRoute, deleted, row)
	default: // GetIpForwardEntry2
		if !exists {
			return refuse(errorNotFound, "there is no such route")
		}
		if have != nil {
			return outcome{row: have}
		}
	}
	return outcome{}
}

func (h *Host) addressKey(row []byte) (addressKey, outcome) {
	a := h.find(le.Uint64(row[addressLUID:]), le.Uint32(row[addressIndex:]))
	if a != nil {
		le.PutUint64(row[addressLUID:], a.luid)
		le.PutUint32(row[addressIndex:], a.index)
	}
	key := keyOfAddress(row)
	switch {
	case !key.addr.IsValid() || key.addr.IsUnspecified() || key.addr.IsMulticast():
		return key, refuse(errorInvalidParameter, "Address is %s", key.addr)
	case a == nil && key.luid == 0:
		return key, refuse(errorInvalidParameter, "neither InterfaceLuid nor InterfaceIndex")
	case a == nil:
		return key, refuse(errorNotFound, "there is no such interface")
	}
	return key, outcome{}
}

func (h *Host) address(function string, key addressKey, row []byte) outcome {
	have, changed := h.addresses[key]
	exists := have != nil || !changed && h.realAddrs[key]
	switch function {
	case "CreateUnicastIpAddressEntry":
		if exists {
			return refuse(errorObjectExists, "the address is there")
		}
		if row[addressBits] == 255 { // InitializeUnicastIpAddressEntry's default: all bits of the address
			row[addressBits] = byte(key.addr.BitLen())
		}
		if int(row[addressBits]) > key.addr.BitLen() {
			return refuse(errorInvalidParameter, "OnLinkPrefixLength is %d", row[addressBits])
		}
		h.putAddress(key, row)
	case "SetUnicastIpAddressEntry":
		if !exists {
			return refuse(errorNotFound, "there is no such address")
		}
		h.addresses[key] = row
		h.notify(kindAddress, changedParameter, row)
	case "DeleteUnicastIpAddressEntry":
		if !exists {
			return refuse(errorNotFound, "there is no such address")
		}
		if h.OnAddress != nil {
			h.OnAddress(false, netip.PrefixFrom(key.addr, int(row[addressBits])), h.name(key.luid))
		}
		if h.realAddrs[key] && have == nil {
			h.addresses[key] = nil
		} else {
			delete(h.addresses, key)
		}
		h.notify(kindAddress, deleted, row)
	default: // GetUnicastIpAddressEntry
		if !exists {
			return refuse(errorNotFound, "there is no such address")
		}
		if have != nil {
			return outcome{row: have}
		}
	}
	return outcome{}
}

// putAddress adds an address. Duplicate address detection ends immediately (DadState preferred); the origin is manual unless the row sets
// another.
func (h *Host) putAddress(key addressKey, row []byte) {
	const unchanged, manual, preferred = 16, 1, 4
	for _, offset := range []int{addressPrefixOrigin, addressSuffixOrigin} {
		if origin := le.Uint32(row[offset:]); origin == unchanged || origin == 0 {
			le.PutUint32(row[offset:], manual)
		}
	}
	le.PutUint32(row[addressDAD:], preferred)
	if a := h.find(key.luid, 0); a != nil {
		le.PutUint32(row[addressIndex:], a.index)
	}
	h.addresses[key] = row
	if h.OnAddress != nil {
		h.OnAddress(true, netip.PrefixFrom(key.addr, int(row[addressBits])), h.name(key.luid))
	}
	h.notify(kindAddress, added, row)
}

// ipInterface reads or sets the settings of an interface for one family.
func (h *Host) ipInterface(function string, row []byte) ([]string, outcome) {
	a := h.find(le.Uint64(row[interfaceLUID:]), le.Uint32(row[interfaceIndex:]))
	family := le.Uint16(row[interfaceFamily:])
	switch {
	case family != familyIPv4 && family != familyIPv6:
		return nil, refuse(errorInvalidParameter, "Family is %d", family)
	case a == nil:
		return nil, refuse(errorNotFound, "there is no such interface")
	}
	key := interfaceKey{family, a.luid}
	args := []string{h.name(a.luid)}
	if function == "GetIpInterfaceEntry" {
		return args, outcome{row: h.interfaceRow(key, a)}
	}
	// GetIpInterfaceEntry gives 64 for IPv4 too, which Set then refuses (wireguard/windows winipcfg, MibIPInterfaceRow.get, corrects it).
	if site := le.Uint32(row[interfaceSitePrefix:]); family == familyIPv4 && site > 32 || site > 128 {
		return args, refuse(errorInvalidParameter, "SitePrefixLength is %d", site)
	}
	args = append(args, fmt.Sprintf("forwarding %t weak-host-send %t weak-host-receive %t", row[interfaceForwarding] != 0, row[interfaceWeakSend] != 0,
		row[interfaceWeakReceive] != 0))
	h.interfaces[key] = row
	h.notify(kindInterface, changedParameter, row)
	return args, outcome{}
}

// interfaceRow returns the settings that were set, or the defaults of a new interface.
func (h *Host) interfaceRow(key interfaceKey, a *adapter) []byte {
	if row := h.interfaces[key]; row != nil {
		return row
	}
	row := make([]byte, interfaceSize)
	le.PutUint16(row[interfaceFamily:], key.family)
	le.PutUint64(row[interfaceLUID:], a.luid)
	le.PutUint32(row[interfaceIndex:], a.index)
	row[interfaceAutoMetric], row[interfaceConnected] = 1, 1
	le.PutUint32(row[interfaceSitePrefix:], 64)
	le.PutUint32(row[interfaceMetric:], 25)
	le.PutUint32(row[interfaceMTU:], 1500)
	return row
}

// convert translates between the index and the LUID of a simulated adapter; the unknown one is 0.
func (h *Host) convert(row []byte) outcome {
	a := h.find(le.Uint64(row), le.Uint32(row[8:]))
	if a == nil {
		return refuse(errorInvalidParameter, "there is no such interface")
	}
	le.PutUint64(row, a.luid)
	le.PutUint64(row[8:], uint64(a.index))
	return outcome{row: row}
}
