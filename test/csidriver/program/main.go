// Program csidriver runs the CSI driver of package csidriver until SIGINT or SIGTERM.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/winkube/winkube/pkg/plugins/pluginstest"
	"github.com/winkube/winkube/test/csidriver"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1)
	}
}

func run() error {
	var cfg csidriver.Config
	pflag.StringVar(&cfg.Name, "name", "dir.winkube.test", "name of the driver")
	pflag.StringVar(&cfg.NodeID, "node-id", "", "id of this node")
	pflag.StringVar(&cfg.Endpoint, "endpoint", "", "path of the driver's socket")
	pflag.StringVar(&cfg.Registry, "registry", "", "the kubelet's directory plugins_registry; empty: do not register")
	pflag.StringVar(&cfg.Data, "data", "", "directory of the volumes")
	pflag.Int64Var(&cfg.Most, "max-volumes", 0, "volumes that this node can have; 0: no limit")
	pflag.BoolVar(&cfg.Links, "links", runtime.GOOS == "windows", "make links instead of mounts, as drivers on Windows do")
	pflag.BoolVar(&cfg.Proxy, "csi-proxy", false, "have csi-proxy make the links, on Windows")
	loopback := pflag.Bool("loopback", false, "serve on 127.0.0.1, with the address in the place of the socket: Wine has no Unix sockets")
	pflag.StringToStringVar(&cfg.Topology, "topology", nil, "topology of this node, as KEY=VALUE")
	pflag.Parse()
	if *loopback {
		cfg.Listen = pluginstest.ListenLoopback
	}
	driver, err := csidriver.New(cfg)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return driver.Run(ctx)
}
