package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The commands of a tenant who takes more than its share. Each works within bounds that its arguments give.

// burrow goes down by one name at a time, since the whole path is longer than the system takes.
func burrow(args []string) error {
	if len(args) != 3 {
		return errors.New("burrow: want a directory, a depth and a number of bytes")
	}
	depth, err := number("burrow", args[1:2])
	if err != nil {
		return err
	}
	back, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	name := strings.Repeat("d", 200)
	for range depth {
		if err := os.Mkdir(name, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
		if err := os.Chdir(name); err != nil {
			return err
		}
	}
	return errors.Join(fill([]string{"f", args[2]}), os.Chdir(back))
}

func litter(args []string) error {
	if len(args) != 2 {
		return errors.New("litter: want a directory and a number")
	}
	n, err := number("litter", args[1:])
	if err != nil {
		return err
	}
	for i := range n {
		file, err := os.Create(filepath.Join(args[0], strconv.Itoa(i)))
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	fmt.Println("littered", n)
	return nil
}

func hide(args []string) error {
	if err := fill(args); err != nil {
		return err
	}
	file, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer file.Close()
	if err := os.Remove(args[0]); err != nil {
		return err
	}
	fmt.Println("hidden", args[1])
	return sleep(nil)
}

// hoarders is how many connections hoard opens at a time: on a slow host an answer takes long, and waiting is all that they do.
const hoarders = 32

// hoard opens connections until it has as many as it wants or is refused a hundred times in a row. A connection counts once
// the server has answered on it: a proxy that refuses may accept it first. After that the server waits for another request.
func hoard(args []string) error {
	if len(args) != 2 {
		return errors.New("hoard: want an address and a number")
	}
	n, err := number("hoard", args[1:])
	if err != nil {
		return err
	}
	var (
		mu            sync.Mutex
		held          []net.Conn
		opens         sync.WaitGroup
		left, refused = n, 0
	)
	begin := func() bool {
		mu.Lock()
		defer mu.Unlock()
		if left == 0 || refused >= 100 {
			return false
		}
		left--
		return true
	}
	end := func(conn net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if conn == nil {
			left++
			refused++
			return
		}
		refused = 0
		if held = append(held, conn); len(held)%500 == 0 {
			fmt.Println("holding", len(held))
		}
	}
	for range hoarders {
		opens.Go(func() {
			for begin() {
				conn, _ := served(args[0]) // nil with an error
				end(conn)
			}
		})
	}
	opens.Wait()
	fmt.Println("hoarded", len(held))
	err = sleep(nil)
	for _, conn := range held {
		conn.Close()
	}
	return err
}

// served returns a connection to a web server that has answered a request on it.
func served(addr string) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return nil, err
	}
	_, write := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: sample\r\n\r\n")
	late := conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, read := conn.Read(make([]byte, 1024))
	if err := errors.Join(write, late, read); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
