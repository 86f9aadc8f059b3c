// Package way measures the way between nodes' pods: how fast bytes go from pod to pod beside from host to host, and what the routes of a
// thousand nodes cost the proxy.
//
//	lab cluster -> sink and source in hosts and pods -> rates; an empty network namespace -> routes.Apply -> times
package way
