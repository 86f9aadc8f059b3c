package host

import (
	"fmt"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// Adapters lists the network adapters, and beside each the filters that are bound to it, by the same name.
var Adapters = adapters

func adapters() (all []Adapter, err error) {
	rows, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return nil, fmt.Errorf("cannot list the network adapters: %w", err)
	}
	main := defaultAdapter()
	for i := range rows {
		r := &rows[i]
		all = append(all, Adapter{
			Name: r.Alias(), Up: r.OperStatus == winipcfg.IfOperStatusUp, Loopback: r.Type == winipcfg.IfTypeSoftwareLoopback, Default: r.InterfaceIndex == main,
			RxBytes: r.InOctets, RxErrors: r.InErrors, TxBytes: r.OutOctets, TxErrors: r.OutErrors,
		})
	}
	return all, nil
}

// defaultAdapter is the index of the adapter of the default route with the least metric, 0 where there is none.
func defaultAdapter() (index uint32) {
	routes, err := winipcfg.GetIPForwardTable2(windows.AF_INET)
	if err != nil {
		return 0
	}
	least := ^uint32(0)
	for i := range routes {
		if r := &routes[i]; r.DestinationPrefix.PrefixLength == 0 && r.Metric < least {
			least, index = r.Metric, r.InterfaceIndex
		}
	}
	return index
}
