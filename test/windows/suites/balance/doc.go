// Package balance tests the Windows back ends of our proxy, hnslb and portproxy, on the simulated HNS and netsh, on any system and without Wine.
// It runs the suite of all back ends, tests what happens when HNS crashes, restarts or reboots, counts calls, and compares hnslb's result with
// that of upstream's kube-proxy.
//
//	proxytest.Run, proxy.Build --> hnslb.Balancer --> client --> hns.HNS
//	proxytest.Run --> kubeproxy.Split(portproxy.Backend, fake) --> netsh.Netsh
package balance
