package cri

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// testEndpoint is an endpoint that nothing else uses.
func testEndpoint(t *testing.T) string { return "npipe:////./pipe/" + t.Name() }

// connect is how a client gets to it.
func connect(ctx context.Context, endpoint string) (net.Conn, error) {
	pipe := systemPath("npipe", strings.TrimPrefix(endpoint, "npipe://"))
	takeFirst(pipe)
	return winio.DialPipeContext(ctx, pipe)
}

// takeFirst keeps the first instance of the pipe, which go-winio never serves: Windows keeps clients from it, Wine lets one in and hangs it.
func takeFirst(pipe string) {
	if name, err := windows.UTF16PtrFromString(pipe); err == nil {
		_, _ = windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_OVERLAPPED, 0)
	}
}
