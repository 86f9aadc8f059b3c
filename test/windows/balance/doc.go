// Package balance holds the back end hnslb of our proxy to the simulated HNS, on any system and without Wine: the suite of all back ends, what
// an HNS that crashes, restarts or reboots does to it, how many calls it needs, and that it leaves what upstream's kube-proxy leaves.
//
//	proxytest.Run, proxy.Build --> hnslb.Balancer --> client --> hns.HNS
package balance
