package host

import (
	"fmt"

	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// Adapters lists the network adapters, and under the same name the filters bound to each.
func Adapters() (all []Adapter, err error) {
	rows, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return nil, fmt.Errorf("cannot list the network adapters: %w", err)
	}
	main, _, err := defaultRoutes()
	if err != nil {
		return nil, err
	}
	for i := range rows {
		r := &rows[i]
		all = append(all, Adapter{
			Name: r.Alias(), Up: r.OperStatus == winipcfg.IfOperStatusUp, Loopback: r.Type == winipcfg.IfTypeSoftwareLoopback, Default: main != 0 && int(r.InterfaceIndex) == main,
			RxBytes: r.InOctets, RxErrors: r.InErrors, TxBytes: r.OutOctets, TxErrors: r.OutErrors,
		})
	}
	return all, nil
}
