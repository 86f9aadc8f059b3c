// Package join lets kubelet.exe and proxy.exe, under Wine, join the lab's cluster as a third node, once per Windows Server.
//
//	API server (real) <-- kubelet.exe --npipe--> relay --> windockerd (Windows) --> dockerd (Linux): pods really run
//	                  <-- proxy.exe --IP Helper--> sim.World: addresses of services, which the test mirrors to the host
//
// It proves that our calls are made, that their answers are handled, and that state survives. It does not prove anything about Windows,
// HNS and its data path, or NTFS. The test creates the pods' network and the routes to other nodes, as the seeds' pages tell the
// administrator to do.
package join
