// Package traffic measures the service proxy's data plane. It sends the same traffic directly to an endpoint, through
// HAProxy in TCP mode, a relay of twenty lines, upstream's kube-proxy in nftables mode and our proxy, in turn, on one
// machine.
//
//	two network namespaces with a server each --> sides --> rounds of each load, the sides in turn --> medians --> table
//
// Both proxies run as in production, with a minimal API server. Upstream's has a separate namespace: its rules would
// slow down the other sides.
package traffic
