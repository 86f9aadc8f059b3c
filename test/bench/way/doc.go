// Package way measures the path between pods on different nodes: the throughput from pod to pod compared with host to
// host, and the proxy's cost of the routes for a thousand nodes.
//
//	lab cluster -> sink and source in hosts and pods -> rates; an empty network namespace -> routes.Apply -> times
package way
