package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

func port(args []string, fallback string) string {
	if len(args) > 0 {
		return ":" + args[0]
	}
	return ":" + fallback
}

func serve(args []string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "hello from %s\n", name) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /hostname", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, strings.Join(os.Environ(), "\n"))
	})
	mux.HandleFunc("GET /headers", func(w http.ResponseWriter, r *http.Request) { _ = r.Header.Write(w) })
	mux.HandleFunc("GET /client-ip", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.RemoteAddr) })
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(r.URL.Query().Get("path"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(data)
	})
	logged := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			fmt.Println(r.RemoteAddr, r.Method, r.URL.Path)
		}
		mux.ServeHTTP(w, r)
	})
	server := &http.Server{Addr: port(args, "80"), Handler: logged, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	fmt.Println("serving on", server.Addr)
	select {
	case err := <-ended:
		return err
	case <-told():
		fmt.Println("told to end")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return server.Shutdown(ctx)
	}
}

func echo(args []string) error {
	addr := port(args, "7777")
	packets, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(buffer[:n], from)
		}
	}()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	fmt.Println("echo on", addr)
	<-told()
	return nil
}

// client opens a connection per request: a kept one would not show what the service does with the next.
func client(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
}

func get(args []string) error {
	if len(args) != 1 {
		return errors.New("get: want one URL")
	}
	response, err := client(5 * time.Second).Get(args[0])
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	if response.StatusCode >= 400 {
		return errors.New(response.Status)
	}
	return nil
}

func resolve(args []string) error {
	flags := flag.NewFlagSet("resolve", flag.ContinueOnError)
	proto := flags.String("proto", "udp", "udp or tcp")
	server := flags.String("server", "", "address of the server (default: as in resolv.conf)")
	var names []string
	for len(args) > 0 { // the name may stand before the flags
		if err := flags.Parse(args); err != nil {
			return err
		}
		if args = flags.Args(); len(args) > 0 {
			names, args = append(names, args[0]), args[1:]
		}
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
		if *server != "" {
			addr = net.JoinHostPort(*server, "53")
		}
		return new(net.Dialer).DialContext(ctx, *proto, addr)
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, name := range names {
		addrs, err := resolver.LookupHost(ctx, name)
		if err != nil {
			return err
		}
		slices.Sort(addrs)
		fmt.Println(strings.Join(addrs, " "))
	}
	return nil
}

func send(args []string) error {
	if len(args) != 3 {
		return errors.New("send: want udp or tcp, an address and a text")
	}
	conn, err := net.DialTimeout(args[0], args[1], 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintln(conn, args[2]); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	fmt.Print(line)
	return err
}

// stream sends a numbered line every 50 ms on one connection and wants it back.
func stream(args []string) error {
	if len(args) != 1 {
		return errors.New("stream: want one address")
	}
	conn, err := net.DialTimeout("tcp", args[0], 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Println("connected", conn.LocalAddr(), "->", conn.RemoteAddr())
	answers := bufio.NewReader(conn)
	ended := told()
	longest, printed := time.Duration(0), time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; n++ {
		sent := time.Now()
		_ = conn.SetDeadline(sent.Add(20 * time.Second))
		line := fmt.Sprintln("line", n)
		if _, err = io.WriteString(conn, line); err == nil {
			var answer string
			if answer, err = answers.ReadString('\n'); err == nil && answer != line {
				err = fmt.Errorf("sent %q, got %q", line, answer)
			}
		}
		if err != nil {
			fmt.Printf("broken after %d lines: %v\n", n, err)
			return err
		}
		longest = max(longest, time.Since(sent))
		if time.Since(printed) >= time.Second {
			fmt.Printf("unbroken: %d lines, longest wait %s\n", n, longest.Round(time.Millisecond))
			printed = time.Now()
		}
		select {
		case <-ended:
			return nil
		case <-tick.C:
		}
	}
}

// watch sends a request every 10 ms, each on a new connection. Intervals are from the first request that failed to the end of the first that
// succeeded after it.
func watch(args []string) error {
	if len(args) != 2 {
		return errors.New("watch: want a URL and a duration")
	}
	span, err := duration(args[1])
	if err != nil {
		return err
	}
	end := time.Now().Add(span)
	c := client(time.Second)
	var down time.Time
	var last error
	requests, lost := 0, 0
	for ; time.Now().Before(end); requests++ {
		begin := time.Now()
		response, err := c.Get(args[0])
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		if err != nil {
			lost++
		}
		switch {
		case err != nil && down.IsZero():
			down, last = begin, err
		case err == nil && !down.IsZero():
			fmt.Printf("outage %.3f s, from %d ms: %v\n", time.Since(down).Seconds(), down.UnixMilli(), last)
			down = time.Time{}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !down.IsZero() {
		fmt.Printf("outage %.3f s, from %d ms, not over: %v\n", time.Since(down).Seconds(), down.UnixMilli(), last)
	}
	fmt.Printf("%d requests, %d lost\n", requests, lost)
	return nil
}
