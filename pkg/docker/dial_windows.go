package docker

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// serverPID is 0, unknown: the client's pipe hides the handle by which Windows would tell, and nothing is measured by it there.
func serverPID(net.Conn) int { return 0 }

// dialPeer connects to the first of p's addresses.
func dialPeer(ctx context.Context, p peer, port int) (net.Conn, error) {
	if len(p.addresses) == 0 {
		return nil, errors.New("it has no address")
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(p.addresses[0], uint16(port)).String())
}
