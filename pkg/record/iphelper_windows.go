package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// Variables through which winipcfg calls iphlpapi.dll.
var (
	//go:linkname getIfTable golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procGetIfTable2Ex
	getIfTable *windows.LazyProc
	//go:linkname getAddressTable golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procGetUnicastIpAddressTable
	getAddressTable *windows.LazyProc
	//go:linkname getRouteTable golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procGetIpForwardTable2
	getRouteTable *windows.LazyProc
	//go:linkname getInterface golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procGetIpInterfaceEntry
	getInterface *windows.LazyProc
	//go:linkname setInterface golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procSetIpInterfaceEntry
	setInterface *windows.LazyProc
	//go:linkname createAddress golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procCreateUnicastIpAddressEntry
	createAddress *windows.LazyProc
	//go:linkname setAddress golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procSetUnicastIpAddressEntry
	setAddress *windows.LazyProc
	//go:linkname deleteAddress golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procDeleteUnicastIpAddressEntry
	deleteAddress *windows.LazyProc
	//go:linkname createRoute golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procCreateIpForwardEntry2
	createRoute *windows.LazyProc
	//go:linkname setRoute golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procSetIpForwardEntry2
	setRoute *windows.LazyProc
	//go:linkname deleteRoute golang.zx2c4.com/wireguard/windows/tunnel/winipcfg.procDeleteIpForwardEntry2
	deleteRoute *windows.LazyProc
)

func ipTaps() []tap {
	return []tap{
		{IPHelper, "GetIfTable2Ex", &getIfTable, table(ifRow)}, {IPHelper, "GetUnicastIpAddressTable", &getAddressTable, table(addressRow)},
		{IPHelper, "GetIpForwardTable2", &getRouteTable, table(routeRow)},
		{IPHelper, "GetIpInterfaceEntry", &getInterface, row(interfaceRow)}, {IPHelper, "SetIpInterfaceEntry", &setInterface, row(interfaceRow)},
		{IPHelper, "CreateUnicastIpAddressEntry", &createAddress, row(addressRow)}, {IPHelper, "SetUnicastIpAddressEntry", &setAddress, row(addressRow)},
		{IPHelper, "DeleteUnicastIpAddressEntry", &deleteAddress, row(addressRow)},
		{IPHelper, "CreateIpForwardEntry2", &createRoute, row(routeRow)}, {IPHelper, "SetIpForwardEntry2", &setRoute, row(routeRow)},
		{IPHelper, "DeleteIpForwardEntry2", &deleteRoute, row(routeRow)},
	}
}

// rows is a table of IP Helper: a count, and rows that start at the next multiple of eight bytes.
type rows[T any] struct {
	count uint32
	_     uint32
	first T
}

func table[T any](describe func(*T) any) func(tapped) uintptr {
	return func(t tapped) uintptr {
		return windows.NewCallback(func(which uintptr, out **rows[T]) uintptr {
			open := t.r.ask(t.service, t.name, encode(int(uint16(which))))
			code, _, _ := syscall.SyscallN(t.real, which, uintptr(unsafe.Pointer(out)))
			if code != 0 || out == nil || *out == nil {
				open.answer(uint32(code), nil)
				return code
			}
			list := []any{}
			for i := range unsafe.Slice(&(*out).first, (*out).count) {
				list = append(list, describe(&unsafe.Slice(&(*out).first, (*out).count)[i]))
			}
			open.answer(0, nil, encode(list))
			return code
		})
	}
}

// row records a function that reads or writes one row, which is both its argument and its result.
func row[T any](describe func(*T) any) func(tapped) uintptr {
	return func(t tapped) uintptr {
		return windows.NewCallback(func(one *T) uintptr {
			before := encode(describe(one))
			open := t.r.ask(t.service, t.name, before)
			code, _, _ := syscall.SyscallN(t.real, uintptr(unsafe.Pointer(one)))
			var out []json.RawMessage
			if after := encode(describe(one)); string(after) != string(before) {
				out = append(out, after)
			}
			open.answer(uint32(code), nil, out...)
			return code
		})
	}
}

// luid is an interface's LUID, which survives reboots.
func luid(l winipcfg.LUID) string { return fmt.Sprintf("%#x", uint64(l)) }

func ifRow(r *winipcfg.MibIfRow2) any {
	return map[string]any{"LUID": luid(r.InterfaceLUID), "Index": r.InterfaceIndex, "GUID": r.InterfaceGUID.String(), "Alias": r.Alias(), "Description": r.Description(),
		"MAC": net.HardwareAddr(r.PhysicalAddress()).String(), "MTU": r.MTU, "Type": r.Type, "TunnelType": r.TunnelType, "MediaType": r.MediaType, "Medium": r.PhysicalMediumType,
		"Access": r.AccessType, "Flags": r.InterfaceAndOperStatusFlags, "OperStatus": r.OperStatus, "AdminStatus": r.AdminStatus, "MediaState": r.MediaConnectState,
		"Connection": r.ConnectionType}
}

func addressRow(r *winipcfg.MibUnicastIPAddressRow) any {
	return map[string]any{"LUID": luid(r.InterfaceLUID), "Index": r.InterfaceIndex, "Address": fmt.Sprintf("%s/%d", r.Address.Addr(), r.OnLinkPrefixLength),
		"PrefixOrigin": r.PrefixOrigin, "SuffixOrigin": r.SuffixOrigin, "SkipAsSource": r.SkipAsSource, "Dad": r.DadState, "Valid": r.ValidLifetime, "Preferred": r.PreferredLifetime,
		"Scope": r.ScopeID}
}

func routeRow(r *winipcfg.MibIPforwardRow2) any {
	return map[string]any{"LUID": luid(r.InterfaceLUID), "Index": r.InterfaceIndex, "Destination": r.DestinationPrefix.Prefix().String(), "NextHop": r.NextHop.Addr().String(),
		"SitePrefix": r.SitePrefixLength, "Metric": r.Metric, "Protocol": r.Protocol, "Loopback": r.Loopback, "Publish": r.Publish, "Immortal": r.Immortal, "Origin": r.Origin}
}

func interfaceRow(r *winipcfg.MibIPInterfaceRow) any {
	return map[string]any{"Family": r.Family, "LUID": luid(r.InterfaceLUID), "Index": r.InterfaceIndex, "Forwarding": r.ForwardingEnabled, "WeakHostSend": r.WeakHostSend,
		"WeakHostReceive": r.WeakHostReceive, "AutomaticMetric": r.UseAutomaticMetric, "Metric": r.Metric, "SitePrefix": r.SitePrefixLength, "MTU": r.NLMTU, "Connected": r.Connected,
		"DisableDefaultRoutes": r.DisableDefaultRoutes, "AdvertiseDefaultRoute": r.AdvertiseDefaultRoute, "Advertising": r.AdvertisingEnabled, "DadTransmits": r.DadTransmits,
		"Managed": r.ManagedAddressConfigurationSupported}
}

// Hold adds or removes addr on the first existing adapter of those names, as the proxy does with service addresses. found: there is one.
func Hold(adapters []string, addr netip.Addr, want bool) (found bool, err error) {
	links, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return false, fmt.Errorf("cannot list network adapters: %w", err)
	}
	i := slices.IndexFunc(links, func(l winipcfg.MibIfRow2) bool { return slices.Contains(adapters, l.Alias()) })
	if i < 0 {
		return false, nil
	}
	var row winipcfg.MibUnicastIPAddressRow
	row.Init()
	row.InterfaceLUID, row.OnLinkPrefixLength, row.SkipAsSource, row.DadState = links[i].InterfaceLUID, uint8(addr.BitLen()), true, winipcfg.DadStatePreferred
	row.PrefixOrigin, row.SuffixOrigin = winipcfg.PrefixOriginManual, winipcfg.SuffixOriginManual
	if err := row.Address.SetAddr(addr); err != nil {
		return true, err
	}
	if want {
		return true, row.Create()
	}
	if err := row.Delete(); err != nil && !errors.Is(err, windows.ERROR_NOT_FOUND) {
		return true, err
	}
	return true, nil
}
