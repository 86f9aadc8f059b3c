package exec

import (
	"net"
	"net/netip"
	"testing"
)

func TestDialPeer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().(*net.TCPAddr)
	conn, err := dialPeer(t.Context(), peer{addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, address.Port)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if _, err := dialPeer(t.Context(), peer{}, address.Port); err == nil {
		t.Error("a container without an address was reached")
	}
}
