//go:build windows

package main

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// relay connects each client of a pipe (\\.\pipe\name) to a TCP address.
func relay(ctx context.Context, pipe, address string) error {
	listener, err := winio.ListenPipe(pipe, &winio.PipeConfig{MessageMode: true}) // message mode carries the end of one direction, as Docker's pipe does
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", pipe, err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	if err := burn(pipe); err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		client, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot accept on %s: %w", pipe, err)
		}
		go join(client, address)
	}
}

// burn takes the first instance of the pipe and keeps it: go-winio never serves it, and Windows keeps clients from it, but Wine lets the
// first one in and hangs it.
func burn(pipe string) error {
	name, err := windows.UTF16PtrFromString(pipe)
	if err != nil {
		return err
	}
	if _, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_OVERLAPPED, 0); err != nil {
		return fmt.Errorf("cannot take the first instance of %s: %w", pipe, err)
	}
	return nil
}

// join copies both ways until both ends are done. The end of one direction is passed on.
func join(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return // the client sees its pipe close
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(server, client)
		closeWrite(server)
		close(done)
	}()
	_, _ = io.Copy(client, server)
	closeWrite(client)
	<-done
}

func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
