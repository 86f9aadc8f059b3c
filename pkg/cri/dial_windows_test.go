package cri

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// testEndpoint is an otherwise unused endpoint.
func testEndpoint(t *testing.T) string { return "npipe:////./pipe/" + t.Name() }

// connect connects a client to it.
func connect(ctx context.Context, endpoint string) (net.Conn, error) {
	pipe := systemPath("npipe", strings.TrimPrefix(endpoint, "npipe://"))
	takeFirst(pipe)
	return winio.DialPipeContext(ctx, pipe)
}

// takeFirst occupies the first instance of the pipe, which go-winio never serves: Windows keeps clients from it, Wine admits one and hangs it.
func takeFirst(pipe string) {
	if name, err := windows.UTF16PtrFromString(pipe); err == nil {
		_, _ = windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_OVERLAPPED, 0)
	}
}
