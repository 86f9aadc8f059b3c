package cri

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// testEndpoint is an otherwise unused endpoint.
func testEndpoint(t *testing.T) string { return "unix://" + filepath.Join(t.TempDir(), "cri.sock") }

// connect connects a client to it.
func connect(ctx context.Context, endpoint string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(endpoint, "unix://"))
}
