package iphelper

import "slices"

// table merges Wine's rows with the changes. Wine's rows come first; there is no other order.
func (h *Host) table(function string, family uint32, rows []byte) outcome {
	size := map[string]int{"GetIpForwardTable2": routeSize, "GetUnicastIpAddressTable": addressSize, "GetIpInterfaceTable": interfaceSize, "GetIfTable2Ex": adapterSize}[function]
	if len(rows)%size != 0 {
		return outcome{result: errorInvalidParameter, detail: "rows of another size", unknown: true}
	}
	own := slices.Collect(slices.Chunk(rows, size))
	switch function {
	case "GetIpForwardTable2":
		return outcome{row: h.routeTable(family, own)}
	case "GetUnicastIpAddressTable":
		return outcome{row: h.addressTable(family, own)}
	case "GetIpInterfaceTable":
		return outcome{row: h.interfaceTable(family)}
	}
	return outcome{row: h.adapterTable(own)}
}

func (h *Host) routeTable(family uint32, own [][]byte) []byte {
	var out []byte
	if family == familyAny {
		clear(h.realRoutes)
	}
	for _, row := range own {
		h.saw(le.Uint64(row[routeLUID:]), le.Uint32(row[routeIndex:]), "")
		if h.hides(le.Uint64(row[routeLUID:])) {
			continue
		}
		key := keyOfRoute(row)
		if _, changed := h.routes[key]; !changed { // otherwise OnRoute may have caused it
			out = append(out, row...)
			h.realRoutes[key] = true
		}
	}
	var more [][]byte
	for key, row := range h.routes {
		if row != nil && (family == familyAny || family == familyOf(key.via)) {
			more = append(more, row)
		}
	}
	return append(out, joined(more)...)
}

func (h *Host) addressTable(family uint32, own [][]byte) []byte {
	var out []byte
	if family == familyAny {
		clear(h.realAddrs)
	}
	for _, row := range own {
		h.saw(le.Uint64(row[addressLUID:]), le.Uint32(row[addressIndex:]), "")
		if h.hides(le.Uint64(row[addressLUID:])) {
			continue
		}
		key := keyOfAddress(row)
		_, changed := h.addresses[key]
		if !changed {
			out = append(out, row...)
			h.realAddrs[key] = true
		}
	}
	var more [][]byte
	for key, row := range h.addresses {
		if row != nil && (family == familyAny || family == familyOf(key.addr)) {
			more = append(more, row)
		}
	}
	return append(out, joined(more)...)
}

// joined concatenates rows in a fixed order.
func joined(rows [][]byte) []byte {
	slices.SortFunc(rows, slices.Compare)
	return slices.Concat(rows...)
}

func (h *Host) interfaceTable(family uint32) []byte {
	var out []byte
	for _, a := range h.adapters {
		for _, f := range []uint16{familyIPv4, familyIPv6} {
			if family == familyAny || family == uint32(f) {
				out = append(out, h.interfaceRow(interfaceKey{f, a.luid}, a)...)
			}
		}
	}
	return out
}

func (h *Host) adapterTable(own [][]byte) []byte {
	var out []byte
	for _, row := range own {
		h.saw(le.Uint64(row[adapterLUID:]), le.Uint32(row[adapterIndex:]), utf16At(row[adapterAlias:], 257))
		if h.hides(le.Uint64(row[adapterLUID:])) {
			continue
		}
		out = append(out, row...)
	}
	for _, a := range h.adapters {
		if !a.own {
			continue
		}
		row := make([]byte, adapterSize)
		le.PutUint64(row[adapterLUID:], a.luid)
		le.PutUint32(row[adapterIndex:], a.index)
		putUTF16(row[adapterAlias:], a.name)
		putUTF16(row[adapterDescription:], "Hyper-V Virtual Ethernet Adapter")
		le.PutUint32(row[adapterMTU:], 1500)
		le.PutUint32(row[adapterType:], 6)       // IF_TYPE_ETHERNET_CSMACD
		le.PutUint32(row[adapterOperStatus:], 1) // IfOperStatusUp
		le.PutUint32(row[adapterAdmin:], 1)      // NET_IF_ADMIN_STATUS_UP
		out = append(out, row...)
	}
	return out
}
