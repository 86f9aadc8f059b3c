package pluginstest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// Loopback is a plugins.Wire that stands in for Unix sockets where there are none, as under Wine: the file at the path of the socket has an address
// of 127.0.0.1.
func Loopback(ctx context.Context, socket string) (net.Conn, error) {
	address, err := os.ReadFile(socket)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(string(address), "127.0.0.1:") {
		return nil, &net.AddrError{Err: "no socket", Addr: socket}
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", string(address))
}

// ListenLoopback listens where Loopback connects to. The file is there as a whole, and removed when the listener is closed.
func ListenLoopback(ctx context.Context, socket string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	made := filepath.Join(filepath.Dir(socket), "."+filepath.Base(socket))
	if err = os.WriteFile(made, []byte(listener.Addr().String()), 0o600); err == nil {
		err = os.Rename(made, socket)
	}
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	return loopback{listener, socket}, nil
}

type loopback struct {
	net.Listener
	file string
}

func (l loopback) Close() error {
	_ = os.Remove(l.file)
	return l.Listener.Close()
}
