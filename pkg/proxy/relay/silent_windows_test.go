package relay

import (
	"net"
	"net/netip"
	"testing"
)

func dialUnanswered(t *testing.T, _ netip.AddrPort) func() *net.TCPConn {
	t.Fatal("no plane of this system leaves a SYN without an answer")
	return nil
}
