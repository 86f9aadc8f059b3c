package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/winkube/winkube/test/output"
)

// switchNamespace holds the bridge that connects the veths of all hosts.
var switchNamespace = prefix + "switch"

// Host is a network namespace and a host name that together behave like a machine.
type Host struct {
	Name string     // of the Node: node1
	Addr netip.Addr // of eth0
	// LiveRestore starts the engine with live-restore, so that containers survive it. It applies at the next start of
	// dockerd.
	LiveRestore bool
	// CSIDriver starts the tests' CSI driver on the host, with the next Process("csidriver").Ensure.
	CSIDriver bool
	// ExtraArgs are appended to the command line of a process, by process name, at its next start.
	ExtraArgs map[string][]string
	// ExtraEnv is appended to the environment of a process, as NAME=value.
	ExtraEnv map[string][]string

	cluster      *Cluster
	engine       string         // of InstallEngine; "": the cluster's
	moreSettings map[string]any // of the engine
	cniVersion   string         // of its plugins' configuration; "": 1.0.0
	moved        bool           // see MovePeer
	number       int            // 1, 2, ... for nodes
	ownMounts    bool           // see upMounts
	processes    []*Process
}

// Number identifies the host, from 1: it is part of the addresses of the host and of its engine's network.
func (h *Host) Number() int { return h.number }

func (c *Cluster) newHost(name string, addr netip.Addr) *Host {
	return &Host{Name: name, Addr: addr, LiveRestore: true, ExtraArgs: map[string][]string{}, ExtraEnv: map[string][]string{}, cluster: c}
}

// Namespace is the name of the host's network namespace (`ip netns`).
func (h *Host) Namespace() string { return prefix + h.Name }

// Dir returns the path of a file in the host's directory, below the cluster's state.
func (h *Host) Dir(elem ...string) string {
	return filepath.Join(append([]string{h.cluster.State, h.Name}, elem...)...)
}

// RunDir returns the path of a file next to the host's sockets.
func (h *Host) RunDir(elem ...string) string {
	return filepath.Join(append([]string{runDir, h.Name}, elem...)...)
}

// Process returns the host's process of that name. It panics if there is none: callers use constant names.
func (h *Host) Process(name string) *Process {
	for _, process := range h.processes {
		if process.Name == name {
			return process
		}
	}
	panic(fmt.Sprintf("lab: host %s has no process %q", h.Name, name))
}

// ProcessNames lists the host's processes in start order.
func (h *Host) ProcessNames() []string {
	var names []string
	for _, process := range h.processes {
		names = append(names, process.Name)
	}
	return names
}

// Command prepares a program that runs on the host: in its network, with its host name.
func (h *Host) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append(h.enter(), argv...)...)
}

func (h *Host) enter() []string {
	args := []string{"--net=/run/netns/" + h.Namespace()}
	if _, err := os.Stat(h.utsFile()); err == nil { // a cluster of an earlier build has none
		args = append(args, "--uts="+h.utsFile())
	}
	if h.ownMounts {
		args = append(args, "--mount="+h.mountsFile())
	}
	return append(args, "--")
}

// utsFile is the file that holds the UTS namespace of the host's name.
func (h *Host) utsFile() string { return h.RunDir("uts") }

// upHostName sets the host's name. Pods in the host's network have it too, because the engine gives them its own host
// name.
func (h *Host) upHostName(ctx context.Context) error {
	for _, m := range readMounts() {
		if m.point == h.utsFile() {
			return nil
		}
	}
	if err := os.WriteFile(h.utsFile(), nil, 0o644); err != nil {
		return err
	}
	_, err := run(ctx, "unshare", "--uts="+h.utsFile(), "--", "sh", "-c", "echo "+h.Name+" >/proc/sys/kernel/hostname")
	return err
}

// Exec runs a program on the host and returns its standard output; the error includes both streams.
func (h *Host) Exec(ctx context.Context, argv ...string) (stdout string, err error) {
	return finish(h.Command(ctx, argv...), argv)
}

// run runs a program on the machine itself.
func run(ctx context.Context, argv ...string) (string, error) {
	return finish(exec.CommandContext(ctx, argv[0], argv[1:]...), argv)
}

func finish(cmd *exec.Cmd, argv []string) (stdout string, err error) {
	said, err := output.Of(cmd)
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, said)
	}
	return said.Stdout, err
}

// upHosts creates missing namespaces, the bridge and veths.
func (c *Cluster) upHosts(ctx context.Context) error {
	if err := c.upNamespace(ctx, switchNamespace); err != nil {
		return err
	}
	if _, err := run(ctx, "ip", "-n", switchNamespace, "link", "show", "br0"); err != nil {
		if err := ip(ctx, switchNamespace, "link add br0 type bridge"); err != nil {
			return err
		}
	}
	if err := ip(ctx, switchNamespace, "link set br0 up"); err != nil {
		return err
	}
	for _, host := range c.Hosts() {
		if err := c.upHost(ctx, host); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) upHost(ctx context.Context, host *Host) error {
	if err := c.upNamespace(ctx, host.Namespace()); err != nil {
		return err
	}
	if err := host.upLink(ctx); err != nil {
		return err
	}
	if err := host.upDirectories(); err != nil {
		return err
	}
	return host.upHostName(ctx)
}

func (c *Cluster) upNamespace(ctx context.Context, name string) error {
	if _, err := os.Stat("/run/netns/" + name); err != nil {
		if _, err := run(ctx, "ip", "netns", "add", name); err != nil {
			return err
		}
	}
	return ip(ctx, name, "link set lo up")
}

// upLink creates the host's eth0. Pods' and services' ranges end in the host if no better route exists: nothing may
// leave the machine, and there is no default route either.
func (h *Host) upLink(ctx context.Context) error {
	namespace := h.Namespace()
	if _, err := run(ctx, "ip", "-n", namespace, "link", "show", "eth0"); err != nil {
		if err := ip(ctx, switchNamespace, "link add "+h.Name+" type veth peer name eth0 netns "+namespace); err != nil {
			return err
		}
	}
	if err := ip(ctx, switchNamespace, "link set "+h.Name+" master br0 up"); err != nil {
		return err
	}
	if h.cluster.DualStack {
		if err := h.upIPv6(ctx); err != nil {
			return err
		}
	}
	for _, args := range []string{
		"addr replace " + h.Addr.String() + "/24 dev eth0",
		"link set eth0 up",
		"route replace unreachable " + PodCIDR + " metric 1000000",
		"route replace unreachable " + ServiceCIDR + " metric 1000000",
	} {
		if err := ip(ctx, namespace, args); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) upDirectories() error {
	for _, dir := range []string{h.Dir(), h.Dir("pki"), h.Dir("manifests"), h.RunDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if h == h.cluster.Control {
		return nil
	}
	// DNS configuration of pods with dnsPolicy Default. The server does not exist: the cluster has no connection to the
	// outside.
	resolv := "search lab.test\nnameserver " + h.cluster.Control.Addr.String() + "\n"
	if err := os.WriteFile(h.Dir("resolv.conf"), []byte(resolv), 0o644); err != nil {
		return err
	}
	return makeCgroups(h.cgroup())
}

// ip runs the ip tool in a namespace; arguments must not contain spaces.
func ip(ctx context.Context, namespace, args string) error {
	_, err := run(ctx, append([]string{"ip", "-n", namespace}, strings.Fields(args)...)...)
	return err
}
