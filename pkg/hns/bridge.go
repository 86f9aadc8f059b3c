package hns

import "net/netip"

// Bridge is an l2bridge network for pods whose gateway is an endpoint of the host.
type Bridge struct {
	Name    string         // of the network and of the host's endpoint, whose adapter Windows calls "vEthernet (NAME)"
	Subnet  netip.Prefix   // IPv4
	Gateway netip.Addr     // the pods', which the host's endpoint has
	Adapter string         // network adapter that the network takes; "": HNS chooses
	Routes  []netip.Prefix // what pods send there goes by the host: policy ROUTE with NeedEncap, as in wincni's configuration
}
