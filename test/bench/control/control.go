//go:build linux

// Command control measures the control plane of a service proxy: the time for a cold start and for one changed
// endpoint, processor time for both, and resident memory, with 100 and 10,000 services. All proxies use the same
// simulated API server, each in a separate network namespace. Clients of mode connect are in a separate cgroup.
//
//	api (protobuf watches) --> proxy under test --> fronts in the namespace --> two servers that identify themselves
//
// It needs root and the built proxy; it measures upstream's if `_output/tools/kube-proxy` exists. It is not a test: bad
// figures are not failures.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/winkube/winkube/pkg/proxy/connect"
	"github.com/winkube/winkube/test/apiserver"
	"github.com/winkube/winkube/test/lab"
)

const (
	hostCommand = "host" // first argument of this program's process inside a namespace
	nodeName    = "bench"
	apiAddr     = "127.0.0.1:6080"
	metricsAddr = "127.0.0.1:10249"
	backPort    = 9000
	perService  = 5   // endpoints
	changes     = 100 // of one endpoint, for each figure
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	do := run
	if len(os.Args) > 1 && os.Args[1] == hostCommand {
		do = func(ctx context.Context) error { return inside(ctx, os.Args[2:]) }
	}
	if err := do(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures our proxy and, if it is built, upstream's in nftables mode, and prints a table.
func run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	root, err := lab.FindRoot()
	if err != nil {
		return err
	}
	out := os.Stdout
	fmt.Fprintf(out, "\n%-34s %12s %12s %12s %14s %14s %14s %12s\n", "control plane", "cold", "CPU cold", "change p50", "change p99", "CPU per change", "RSS", "peak RSS")
	ours := filepath.Join(root, "_output/bin/linux/amd64/proxy")
	for _, proxy := range []struct{ name, mode, path, build string }{
		{"winkube, relay", "userspace", ours, "make control"},
		{"winkube, connect", connectMode, ours, "make control"},
		{"upstream, nftables", "nftables", filepath.Join(root, "_output/tools/kube-proxy"), "go run ./test/bench -only proxy"},
	} {
		if _, err := os.Stat(proxy.path); err != nil {
			fmt.Fprintf(out, "%-34s not measured: %v; %s builds it\n", proxy.name, err, proxy.build)
			continue
		}
		for _, services := range []int{100, 10000} {
			cmd := exec.CommandContext(ctx, "unshare", "--net", "setpriv", "--pdeathsig", "KILL", self, hostCommand, proxy.name, proxy.mode, proxy.path, strconv.Itoa(services))
			cmd.Stdout, cmd.Stderr = out, out
			if err := inCgroup(cmd, proxy.mode); err != nil {
				fmt.Fprintf(out, "%-34s not measured with %d services: %v\n", proxy.name, services, err)
			}
		}
	}
	return nil
}

const (
	connectMode = "connect"
	cgroupEnv   = "WINKUBE_CONTROL_CGROUP"
)

// inCgroup runs a command, for mode connect in a new cgroup of version 2, whose clients the proxy serves.
func inCgroup(cmd *exec.Cmd, mode string) error {
	if mode != connectMode {
		return cmd.Run()
	}
	root, err := connect.RootCgroup()
	if err != nil {
		return err
	}
	group := filepath.Join(root, "winkube-control")
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	dir, err := os.Open(group)
	if err != nil {
		return err
	}
	defer dir.Close()
	cmd.Env = append(os.Environ(), cgroupEnv+"="+group)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	err = cmd.Run()
	return errors.Join(err, removeCgroup(group))
}

// removeCgroup waits for the processes of a cgroup that were just killed.
func removeCgroup(group string) (err error) {
	for range 100 {
		if err = os.Remove(group); !errors.Is(err, syscall.EBUSY) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// inside runs in the namespace: it measures one proxy with one number of services.
func inside(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("want name, mode, path and number of services, got %q", args)
	}
	services, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	if err := setUpHost(); err != nil {
		return err
	}
	server, err := apiserver.New(apiserver.Protobuf)
	if err != nil {
		return err
	}
	if err := fill(server, services); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", apiAddr)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, server) }()
	dir, err := os.MkdirTemp("", "winkube-control-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p := &subject{name: args[0], api: server, log: filepath.Join(dir, "log")}
	return p.measure(ctx, args[2], args[1], services)
}

// setUpHost brings up loopback with the addresses of the servers, which answer with their letter. It adds a default
// route, without which the kernel rejects service addresses that exist only in packet rules.
func setUpHost() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for letter, addr := range backs {
		parsed, err := netlink.ParseAddr(addr + "/32")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(lo, parsed); err != nil {
			return err
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(backPort)))
		if err != nil {
			return err
		}
		go answer(listener, letter)
	}
	_, everywhere, err := net.ParseCIDR("0.0.0.0/0")
	if err != nil {
		return err
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everywhere, Src: net.ParseIP(backs['a'])})
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("cannot add a default route: %w", err)
	}
	return nil
}

// answer sends the letter to every client.
func answer(listener net.Listener, letter byte) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte{letter})
		_ = conn.Close()
	}
}
