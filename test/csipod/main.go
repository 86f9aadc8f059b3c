// Program csipod is what upstream's tests of CSI run beside their mock driver, in images of the names csi-node-driver-registrar and
// hostpathplugin: the driver itself is part of the suite.
//
//	kubelet --registers--> csipod -kubelet-registration-path   (asks the driver for its name)
//	kubelet, sidecars --/csi/csi.sock--> csipod -proxy-endpoint <--port forwarding-- the suite's driver
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "csipod:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("csipod", flag.ContinueOnError)
	var r registrar
	flags.StringVar(&r.driver, "csi-address", "/csi/csi.sock", "the driver's socket, as the registrar sees it")
	flags.StringVar(&r.endpoint, "kubelet-registration-path", "", "the driver's socket, as the kubelet sees it")
	flags.StringVar(&r.directory, "plugin-registration-path", "/registration", "the kubelet's directory plugins_registry")
	flags.DurationVar(&r.patience, "timeout", time.Minute, "how long the driver may take to answer")
	socket := flags.String("endpoint", "", "the driver's socket, which the proxy serves")
	proxy := flags.String("proxy-endpoint", "", "where the driver connects: tcp://:PORT")
	for _, of := range []string{"v", "nodeid"} {
		flags.String(of, "", "has no effect")
	}
	flags.SetOutput(io.Discard) // main prints the error
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case r.endpoint != "":
		return r.run(ctx)
	case *proxy == "" || *socket == "":
		return errors.New("want -kubelet-registration-path, or -endpoint and -proxy-endpoint: it is no driver itself")
	}
	address, ok := strings.CutPrefix(*proxy, "tcp://")
	if !ok {
		return fmt.Errorf("-proxy-endpoint: got %q, want tcp://:PORT", *proxy)
	}
	clients, err := listen(ctx, *socket)
	if err != nil {
		return err
	}
	drivers, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return forward(ctx, clients, drivers)
}

// listen listens at a socket. It replaces one that a killed program left.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, "unix", socket)
}
