package proxytest

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// firstFree and lastFree bound the ports of FreePort: below the ephemeral ports, which the kernel may assign to
// connections at any time.
const firstFree, lastFree = 20000, 32000

var lastGiven atomic.Uint32

// FreePort returns a port on which nothing listens, a different one each time. Programs that test concurrently start at
// different ones.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	var err error
	for range 100 {
		port := uint16(firstFree + (uint32(os.Getpid())*20+lastGiven.Add(1))%(lastFree-firstFree))
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal(err)
	return 0
}
