// Command windockerd serves a Docker engine for Windows on a TCP port, in front of a Linux engine on a socket. It serves the call log of
// package engine at /_calls and the faults at /_faults, one per line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/engine"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

func main() {
	var opts engine.Options
	flag.IntVar(&opts.Build, "build", 20348, "Windows Server to be")
	flag.StringVar(&opts.Drive, "drive", "", "directory that is drive C")
	linux := flag.String("engine", "", "socket of the engine of Linux")
	address := flag.String("listen", "127.0.0.1:2375", "where to serve")
	socket := flag.String("socket", "", "where to serve as well, for those in another network")
	hns := flag.String("hns", "", "socket of a server of package sim, whose HNS learns of networks and endpoints")
	registry := flag.String("registry", "", "socket on which GET /NAME answers 200 when the registry has a credential spec of that name")
	neighbour := flag.String("forward", "", "PORT=SOCKET: be no engine, but a port of loopback that leads to another server's socket")
	flag.Parse()
	opts.Dial = func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", *linux) }
	if *hns != "" {
		opts.HNS = sim.HNSCall(func() (net.Conn, error) { return net.Dial("unix", *hns) })
	}
	if *registry != "" {
		opts.CredentialSpec = inRegistry(*registry)
	}
	err := errors.New("want --engine, or --forward alone")
	switch {
	case *neighbour != "":
		err = forward(*neighbour)
	case *linux != "":
		err = serve(opts, *address, *socket)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "windockerd:", err)
		os.Exit(1)
	}
}

// inRegistry asks the process that reads the host's registry.
func inRegistry(socket string) func(name string) bool {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	return func(name string) bool {
		response, err := client.Get("http://registry/" + url.PathEscape(name))
		if err != nil {
			fmt.Fprintln(os.Stderr, "windockerd:", err)
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	}
}

// forward lets programs in this network namespace reach a server in another, until it is killed. Tests need it because their simulators run in the
// test process.
func forward(rule string) error {
	port, socket, _ := strings.Cut(rule, "=")
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		from, err := listener.Accept()
		if err != nil {
			return err
		}
		go join(from.(*net.TCPConn), socket)
	}
}

func join(from *net.TCPConn, socket string) {
	defer from.Close()
	to, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket})
	if err != nil {
		return // the program sees its connection close
	}
	defer to.Close()
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.CloseWrite()
		close(done)
	}()
	_, _ = io.Copy(from, to)
	_ = from.CloseWrite()
	<-done
}

func serve(opts engine.Options, address, socket string) error {
	e, err := engine.New(opts)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	lines := func(list func() []string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Join(list(), "\n")) }
	}
	mux.HandleFunc("/_calls", lines(e.Calls))
	mux.HandleFunc("/_faults", lines(e.Faults))
	mux.Handle("/", e)
	server := &http.Server{Handler: mux}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a killed process
		return err
	}
	unix, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	ended := make(chan error, 3)
	var watch sync.WaitGroup
	if opts.HNS != nil {
		begun := make(chan struct{})
		watch.Go(func() { ended <- e.Watch(ctx, func() { close(begun) }) })
		select {
		case <-begun:
		case err := <-ended:
			return err
		}
	}
	for _, listener := range []net.Listener{tcp, unix} {
		go func() { ended <- server.Serve(listener) }()
	}
	fmt.Println("ready")
	if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	watch.Wait() // it ends the containers
	return nil
}
