// Package tuning changes settings of this process and its host for the relay's epoll plane. Only the proxy's program
// calls it: programs that link the relay as a library change nothing.
//
//	Apply: GOMAXPROCS, RLIMIT_MEMLOCK (both end with the process),
//	       net.ipv4.tcp_tw_reuse, net.netfilter.nf_conntrack_max (both stay until Restore, at --cleanup)
package tuning

// Change is one setting that was changed.
type Change struct{ Name, Before, After string }
