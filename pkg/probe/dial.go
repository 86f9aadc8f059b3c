package probe

import (
	"context"
	"net"
)

// dial makes a connection whose Close leaves no socket in TIME_WAIT behind: nodes with many pods probe often enough to fill tables with
// them otherwise.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		return quiet{tcp}, nil
	}
	return conn, nil
}

// quiet is a connection that ends with FIN and then RST. The FIN tells the server of an orderly end (it reads EOF, not "connection
// reset"), the RST frees our side immediately. A lingering close alone does not: measured, SO_LINGER with a second leaves TIME_WAIT as it is.
type quiet struct{ *net.TCPConn }

// Close ends the connection; what is still unsent is dropped.
func (q quiet) Close() error {
	_ = q.SetLinger(0) // if these fail the connection is gone already, and Close says so
	_ = q.CloseWrite()
	return q.TCPConn.Close()
}
