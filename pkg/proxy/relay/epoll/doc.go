// Package epoll is the relay's Plane for Linux: a few loops, each with its own thread and epoll. Every connection and
// session belongs to one loop for its lifetime. Bulk streams are spliced, packets are sent in batches, and if the
// kernel allows it, TCP fronts have no socket but an entry in a map (BPF sk_lookup).
//
//	relay.Front --> carrier --> listener in every loop, or UDP socket in one --> conn or session --> endpoint
//
// On Windows the package is empty.
package epoll
