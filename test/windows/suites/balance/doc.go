// Package balance holds the back ends of our proxy that are Windows' own, hnslb and portproxy, to the simulated HNS and netsh, on any system and
// without Wine: the suite of all back ends, what an HNS that crashes, restarts or reboots does, how many calls they need, and that hnslb leaves
// what upstream's kube-proxy leaves.
//
//	proxytest.Run, proxy.Build --> hnslb.Balancer --> client --> hns.HNS
//	proxytest.Run --> kubeproxy.Split(portproxy.Backend, fake) --> netsh.Netsh
package balance
