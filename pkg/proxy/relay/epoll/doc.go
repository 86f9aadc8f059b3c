// Package epoll is the relay's Plane for Linux: a few loops, each with its own thread and epoll, to which every connection and session
// belongs from its first packet to its last. A bulk stream is spliced, packets go in batches, and where the kernel allows it TCP fronts have no
// socket but an entry in a map (BPF sk_lookup).
//
//	relay.Front --> carrier --> listener in every loop, or UDP socket in one --> conn or session --> endpoint
//
// On Windows the package is empty.
package epoll
