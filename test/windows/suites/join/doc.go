// Package join lets kubelet.exe and proxy.exe, under Wine, join the lab's cluster as a third node, once per Windows Server.
//
//	API server (real) <-- kubelet.exe --npipe--> relay --> windockerd (Windows) --> dockerd (Linux): pods really run
//	                  <-- proxy.exe --IP Helper--> sim.World: addresses of services, which the test mirrors to the host
//
// What it proves: our calls are made, the answers handled, and state survives. What it does not: Windows, HNS and its data path, NTFS. The
// network of the pods and the routes to other nodes are the test's, as the seeds' pages have the administrator make them.
package join
