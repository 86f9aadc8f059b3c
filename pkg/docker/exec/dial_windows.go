package exec

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// dialPeer connects to the first of p's addresses.
func dialPeer(ctx context.Context, p peer, port int) (net.Conn, error) {
	if len(p.addresses) == 0 {
		return nil, errors.New("it has no address")
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(p.addresses[0], uint16(port)).String())
}
