package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// After kill -9, a child that was about to execute another program holds the predecessor's sockets until it does, on a busy machine for seconds. Nothing
// reports their release.
const (
	listenPatience = 10 * time.Second
	listenPause    = 20 * time.Millisecond
)

// Listen listens on a TCP address (address:port). If that is in use, it waits up to ten seconds, or until ctx ends, for a killed predecessor to release it.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	pause := time.NewTicker(listenPause)
	defer pause.Stop()
	for noted := false; ; noted = true {
		listener, err := (&net.ListenConfig{}).Listen(context.WithoutCancel(ctx), "tcp", address)
		if !inUse(err) {
			return listener, err
		}
		if !noted {
			klog.InfoS("The address is in use; trying again", "address", address, "patience", listenPatience)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// PortFree returns an error if a program listens on a TCP port of this host. 0 is no port.
func PortFree(port int32) error {
	if port == 0 {
		return nil
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	return listener.Close()
}

const wsaAddressInUse syscall.Errno = 10048 // WSAEADDRINUSE (winsock2.h); syscall.EADDRINUSE is a different number on Windows

func inUse(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, wsaAddressInUse)
}
