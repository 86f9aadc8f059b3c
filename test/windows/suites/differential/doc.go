// Package differential proves the HNS simulator by upstream's own kube-proxy.exe, built from its module without a change: it must run on the
// simulator as on Windows, and leave there the load balancers and endpoints that its source says it leaves.
//
//	testdata/*.txtar: objects --> fake API server --> kube-proxy.exe under Wine --> shims --> hns.HNS.String == golden, line by line explained
//
// The program takes several minutes to build, once: into _output/tools/windows.
package differential
