package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// forward joins each client's connection with one that a driver made before, until ctx ends. A driver keeps some connections ready, and may
// have closed them when their turn comes.
func forward(ctx context.Context, clients, drivers net.Listener) error {
	ready := make(chan net.Conn)
	group, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { _, _ = clients.Close(), drivers.Close() })
	defer stop()
	group.Go(func() error {
		return accept(ctx, drivers, func(driver net.Conn) {
			select {
			case ready <- driver:
			case <-ctx.Done():
				_ = driver.Close()
			}
		})
	})
	group.Go(func() error {
		return accept(ctx, clients, func(client net.Conn) {
			for {
				select {
				case driver := <-ready:
					early, open := look(driver)
					if !open {
						_ = driver.Close()
						continue
					}
					join(ctx, client, driver, early)
				case <-ctx.Done():
					_ = client.Close()
				}
				return
			}
		})
	})
	return group.Wait()
}

// accept calls do for each connection, concurrently, until the listener is closed.
func accept(ctx context.Context, l net.Listener, do func(net.Conn)) error {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed) && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		go do(c)
	}
}

// look returns what a driver has sent already, and whether the connection is still open.
func look(driver net.Conn) (early []byte, open bool) {
	const patience = time.Millisecond // reading what has arrived takes no time; this ends the read after it
	buffer := make([]byte, 1<<16)
	for {
		_ = driver.SetReadDeadline(time.Now().Add(patience))
		n, err := driver.Read(buffer)
		early = append(early, buffer[:n]...)
		if err != nil {
			_ = driver.SetReadDeadline(time.Time{})
			return early, errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// join copies in both directions until one side ends. early is what the driver has sent before.
func join(ctx context.Context, client, driver net.Conn, early []byte) {
	var once sync.Once
	end := func() { once.Do(func() { _, _ = client.Close(), driver.Close() }) }
	defer context.AfterFunc(ctx, end)()
	go func() {
		defer end()
		_, _ = io.Copy(client, io.MultiReader(bytes.NewReader(early), driver))
	}()
	defer end()
	_, _ = io.Copy(driver, client)
}
