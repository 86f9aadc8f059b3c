// Package join lets kubelet.exe and proxy.exe, under Wine, join the lab's cluster as a third node, once per Windows Server.
//
//	API server (real) <-- kubelet.exe --npipe--> relay --> windockerd (Windows) --> dockerd (Linux): pods really run
//	                  <-- proxy.exe: service addresses are local to the host by a route of the test, back ends are reached as always
//
// What it proves: our calls are made, the answers handled, and state survives. What it does not: Windows, HNS and its data path, NTFS. The
// addresses of services and the routes to other nodes are the test's, as the seeds' pages have the administrator set them.
package join
