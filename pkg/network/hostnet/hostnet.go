// Package hostnet is this host's network, as the system has it: interfaces, addresses, forwarding and tunnel devices by netlink on Linux, by IP
// Helper and HNS on Windows.
//
//	network.State --Apply--> kernel, HNS        kernel --Watch--> hints        interfaces, routes --Look--> network.Surroundings
//
// It decides nothing; its functions are system calls and what they need.
package hostnet

// routeProtocol marks the proxy's routes (Protocol in package routes).
const routeProtocol = 157
