// Package hostnet reads and changes this host's network: interfaces, addresses, forwarding and tunnel devices, using netlink on Linux and IP Helper
// and HNS on Windows.
//
//	network.State --Apply--> kernel, HNS        kernel --Watch--> hints        interfaces, routes --Look--> network.Surroundings
//
// It makes no decisions; its functions wrap system calls.
package hostnet

// routeProtocol marks the proxy's routes (Protocol in package routes).
const routeProtocol = 157
