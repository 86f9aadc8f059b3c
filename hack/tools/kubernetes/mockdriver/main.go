// Program mockdriver runs the mock CSI driver that upstream's suite contains, where its tests want the driver in a pod: as the image
// hostpathplugin, whose flags it has. With -proxy-endpoint the suite has the driver, and csipod beside it forwards the socket.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

const forwarder = "/csipod"

func main() {
	isProxy := func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "proxy-endpoint") }
	var err error
	if slices.ContainsFunc(os.Args[1:], isProxy) {
		err = syscall.Exec(forwarder, append([]string{forwarder}, os.Args[1:]...), os.Environ())
	} else {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mockdriver:", err)
		os.Exit(1)
	}
}

func run() error {
	klog.InitFlags(nil)
	var cfg service.Config
	flag.StringVar(&cfg.DriverName, "drivername", "", "name of the driver")
	endpoint := flag.String("endpoint", "", "path of the driver's socket")
	flag.Int64Var(&cfg.AttachLimit, "attach-limit", 0, "volumes that the node can have; 0: no limit")
	flag.BoolVar(&cfg.EnableTopology, "enable-topology", false, "volumes belong to the node")
	flag.BoolVar(&cfg.NodeExpansionRequired, "node-expand-required", false, "the node has a part in expansion")
	attach := flag.Bool("enable-attach", false, "volumes are attached")
	for _, name := range []string{"nodeid", "statedir"} {
		flag.String(name, "", "has no effect")
	}
	flag.Parse()
	cfg.DisableAttach = !*attach
	if err := os.Remove(*endpoint); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", *endpoint)
	if err != nil {
		return fmt.Errorf("-endpoint=%s: %w", *endpoint, err)
	}
	s := service.New(cfg)
	d := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: s, Identity: s, Node: s})
	if err := d.Start(listener, nil); err != nil {
		return err
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
	d.Stop()
	return nil
}
