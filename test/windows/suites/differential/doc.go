// Package differential validates the HNS simulator with upstream's own kube-proxy.exe, built unmodified from its module: it must run on the
// simulator as on Windows, and leave the load balancers and endpoints that its source says it leaves.
//
//	testdata/*.txtar: objects --> fake API server --> kube-proxy.exe under Wine --> shims --> hns.HNS.String == golden, line by line explained
//
// Building the program takes several minutes, once: into _output/tools/windows.
package differential
