//go:build windows

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// relay connects each client of a named pipe (\\.\pipe\name) to a TCP address.
func relay(ctx context.Context, pipe, address string) error {
	listener, err := winio.ListenPipe(pipe, &winio.PipeConfig{MessageMode: true}) // message mode signals the end of one direction, as Docker's pipe does
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

// burn connects to the first instance of the pipe and keeps it. go-winio never serves that instance, and Windows does not offer it to
// clients. Wine connects the first client to it, which then hangs.
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

// take does the same for another program's pipe, which may not exist yet, and keeps the instance until ctx ends.
func take(ctx context.Context, pipe string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); ; <-tick.C {
		err := burn(pipe)
		if err == nil {
			fmt.Println("ready")
			<-ctx.Done()
			return nil
		}
		if time.Now().After(end) { // before, a pipe that is not there, or busy: that of a program that has been killed
			return err
		}
	}
}

// get sends an HTTP request to a pipe and prints the status and the body.
func get(pipe, path string) error {
	client := http.Client{Timeout: 3 * time.Minute, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return winio.DialPipeContext(ctx, pipe)
	}}}
	response, err := client.Get("http://pipe" + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	fmt.Printf("%s %s\n", response.Status[:3], body)
	return err
}

// join copies both ways until both ends are done. It passes on the end of one direction.
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
