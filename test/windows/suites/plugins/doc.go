// Package plugins validates the simulators, and the mode cni of our kubelet.exe, with other projects' programs: win-bridge.exe, win-overlay.exe and
// host-local.exe of the CNI project, flanneld.exe, and Microsoft's tests of HNS in hcsshim. All are built unmodified from their modules.
//
//	testdata/*.txtar: calls of CNI --> win-bridge.exe, win-overlay.exe under Wine --> shims --> what each printed, and the state of HNS after it
//	flanneld.exe --> test/apiserver, shims --> annotations of the Node, HNS, routes
//	kubelet.exe --network-mode=cni --> pkg/cni --> win-bridge.exe --> shims
//	hcn.test.exe --> shims --> one line per test
//
// Building the programs takes minutes, once: into _output/tools/windows.
package plugins
