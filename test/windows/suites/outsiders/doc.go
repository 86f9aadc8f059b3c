// Package outsiders runs other projects' programs unmodified in the rig: here dockerd.exe, built from moby's modules in hack/tools/dockerd-*.
// Golden files record how the real daemon answers winkube's requests for networks and containers. The simulated engine must answer the same.
//
//	requests of pkg/docker --> dockerd.exe under Wine --> shims --> HNS, HCS of package sim --> testdata/dockerd-*.golden
//	                       --> simulators/engine      ----------> HNS of package sim ----------> the same lines, but for a table
package outsiders
