// Package tuning changes the settings of this process and of its host that the relay's epoll plane wants. Only the program of the proxy calls it:
// whoever links the relay as a library changes nothing.
//
//	Apply: GOMAXPROCS, RLIMIT_MEMLOCK (both end with the process), net.ipv4.tcp_tw_reuse (stays until Restore, at --cleanup)
package tuning

// Change is one setting that was changed.
type Change struct{ Name, Before, After string }
