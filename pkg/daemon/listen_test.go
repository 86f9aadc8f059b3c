package daemon

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestListen: an address in use is waited for, other errors are not.
func TestListen(t *testing.T) {
	held, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := held.Addr().String()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Listen(ended, address); !inUse(err) {
		t.Errorf("in use until the context ends: %v", err)
	}
	time.AfterFunc(3*listenPause, func() { held.Close() })
	freed, err := Listen(t.Context(), address)
	if err != nil {
		t.Fatalf("freed while Listen waits: %v", err)
	}
	freed.Close()
	begin := time.Now()
	if l, err := Listen(t.Context(), "300.0.0.1:1"); err == nil || inUse(err) || time.Since(begin) > listenPatience/2 {
		t.Errorf("no address: %v, %v after %s", l, err, time.Since(begin))
	}
	if l, err := net.Listen("tcp", address); err != nil {
		t.Errorf("the test has left %s in use: %v", address, err)
	} else {
		l.Close()
	}
}

// TestPortFree: a port is in use whichever address has it.
func TestPortFree(t *testing.T) {
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := int32(held.Addr().(*net.TCPAddr).Port)
	if err := PortFree(port); !inUse(err) {
		t.Errorf("in use: %v", err)
	}
	held.Close()
	for _, free := range []int32{port, 0} {
		if err := PortFree(free); err != nil {
			t.Errorf("port %d: %v", free, err)
		}
	}
}
