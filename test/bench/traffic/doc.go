// Package traffic measures the service proxy's data plane: the same traffic to an endpoint itself, through HAProxy in TCP mode, through a
// relay of twenty lines, through upstream's kube-proxy in nftables mode and through our proxy, in turn, on one machine.
//
//	two network namespaces, one server in each --> sides --> rounds of each load, the sides in turn --> medians --> table
//
// Both proxies run as users run them, against an API server of a few lines. Upstream's has a separate namespace: its rules would slow
// the traffic of the other sides.
package traffic
