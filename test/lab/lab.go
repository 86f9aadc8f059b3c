// Package lab runs a real Kubernetes cluster on this machine, around our two binaries: the end of the whole machine, where desired
// objects go in at a real API server and containers come out of real engines.
//
//	tools, images (built here) -> hosts (network namespaces) -> control plane -> engines -> kubelet and proxy per node
//
// hack/cluster is its command line, test/e2e its tests. A host is a network namespace with one veth on a common bridge and no way out
// of the machine. Everything of a cluster is below State (_output/cluster), runDir and the namespaces and cgroups named
// wk-*; Down removes all of it and then looks whether something is left. The machine's own engine, network and /etc stay as they are.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The cluster's addresses. They exist only inside the namespaces.
const (
	PodCIDR     = "10.244.0.0/16"
	ServiceCIDR = "10.96.0.0/16"
	ServiceIP   = "10.96.0.1" // of the service kubernetes
	DNSAddress  = "10.96.0.10"
	DNSDomain   = "cluster.local"
	apiPort     = "6443"
)

// WINKUBE_CLUSTER names one of several clusters side by side on the machine, each of another checkout: a few letters, "" for the usual
// one. Only what the machine shares needs a name; the networks never meet, so that addresses are the same in each.
var (
	instance = os.Getenv("WINKUBE_CLUSTER")
	// prefix begins the names of namespaces and cgroups.
	prefix = strings.TrimSuffix("wk-"+instance, "-") + "-"
	// runDir holds sockets and the engines' state: short, because a socket's path has at most 107 bytes, and on a tmpfs.
	runDir = strings.TrimSuffix("/run/winkube-"+instance, "-")
)

// EngineAPIs are the engines that test/engineproxy can play.
var EngineAPIs = []string{"1.24", "1.41", "min1.44"}

// Cluster is one control plane and its nodes. Its methods may be called from one goroutine at a time; those of its Processes from any.
type Cluster struct {
	Root  string // the repository
	State string // everything that lasts while the cluster does: logs, certificates, engines' data
	Tools string // built programs of others, and our sample program

	Control *Host
	Nodes   []*Host // two, or three with WINKUBE_NODES=3 in the environment
	spare   []*Host // the third where there are two
	Peer    *Host   // of UpPeer
	Joiner  *Host   // of UpJoiner
	Windows []*Host // of UpWindows: win1 to win4

	// EngineAPI selects the engine that kubelets see, one of EngineAPIs; "": their own engine as it is. It acts on
	// the next Up. New takes it from ENGINE_API in the environment.
	EngineAPI string

	// NetworkMode is the --network-mode of kubelets and proxies, host-gateway, overlay or cni. It acts on the next Up. New takes it from
	// NETWORK_MODE in the environment.
	NetworkMode string

	// DualStack gives hosts, pods and services addresses of both families. It has to be chosen before the first Up. New takes it from
	// DUAL_STACK=1 in the environment.
	DualStack bool

	steps *Steps
}

// New describes the cluster that belongs to the repository root; nothing is done to the machine. Steps are printed to out.
func New(root string, out io.Writer) *Cluster {
	addSystemDirs()
	c := &Cluster{
		Root:  root,
		State: filepath.Join(root, "_output/cluster"),
		Tools: filepath.Join(root, "_output/tools"),
		steps: newSteps(out),

		EngineAPI:   os.Getenv("ENGINE_API"),
		NetworkMode: cmp.Or(os.Getenv("NETWORK_MODE"), "host-gateway"),
		DualStack:   os.Getenv("DUAL_STACK") == "1",
	}
	c.Control = c.newHost("control", netip.MustParseAddr("172.30.0.10"))
	c.Nodes = []*Host{
		c.newHost("node1", netip.MustParseAddr("172.30.0.11")),
		c.newHost("node2", netip.MustParseAddr("172.30.0.12")),
		c.newHost("node3", netip.MustParseAddr("172.30.0.15")),
	}
	c.Control.processes = c.controlProcesses()
	for i, node := range c.Nodes {
		node.number = i + 1
		node.processes = c.nodeProcesses(node)
	}
	if os.Getenv("WINKUBE_NODES") != "3" {
		c.Nodes, c.spare = c.Nodes[:2:2], c.Nodes[2:]
	}
	c.Peer = c.newPeer()
	c.Joiner = c.newJoiner()
	c.Windows = c.newWindows()
	return c
}

// FindRoot returns the repository in which the working directory lies.
func FindRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if data, err := os.ReadFile(filepath.Join(d, "go.mod")); err == nil && strings.HasPrefix(string(data), "module github.com/winkube/winkube\n") {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("cannot find the repository: no go.mod of winkube in %s or above it; change to the checkout first", dir)
		}
	}
}

// Hosts returns the control plane's host and the nodes.
func (c *Cluster) Hosts() []*Host { return append([]*Host{c.Control}, c.Nodes...) }

// Node returns the host of that name, nil when there is none.
func (c *Cluster) Node(name string) *Host {
	for _, host := range c.machines() {
		if host.Name == name {
			return host
		}
	}
	return nil
}

// Up starts or repairs the cluster. It keeps what runs and is up to date, and builds and starts what is missing, dead or outdated.
// It returns when both nodes are Ready.
func (c *Cluster) Up(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	return c.run(ctx, []step{
		{"packages", c.ensurePackages},
		{"plugins", c.ensurePlugins},
		{"build", c.Build},
		{"network mode", c.keepNetwork},
		{"hosts", c.upHosts},
		{"certificates", c.upCertificates},
		{"engines", c.upEngines},
		{"images", c.upImages},
		{"control plane", c.upControl},
		{"kubelet and proxy", c.upAgents},
		{"networks", c.upNetworks},
		{"nodes ready", c.waitNodesReady},
	})
}

// UpWithoutAgents does what Up does, but without our own binaries: for work on the lab itself.
func (c *Cluster) UpWithoutAgents(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	return c.run(ctx, []step{
		{"packages", c.ensurePackages},
		{"build", c.buildTools},
		{"hosts", c.upHosts},
		{"certificates", c.upCertificates},
		{"engines", c.upEngines},
		{"images", c.upImages},
		{"control plane", c.upControl},
	})
}

type step struct {
	name string
	do   func(context.Context) error
}

func (c *Cluster) run(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if err := c.steps.Run(ctx, step.name, step.do); err != nil {
			return err
		}
	}
	return nil
}

// Step runs do as one printed step, as Up does with its own.
func (c *Cluster) Step(ctx context.Context, name string, do func(context.Context) error) error {
	return c.steps.Run(ctx, name, do)
}

// claim takes the cluster's names for this repository: names of namespaces are the machine's, so that it can carry one cluster of a
// name at a time.
func (c *Cluster) claim() (unlock func(), err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("cannot make network namespaces: run as root")
	}
	if err := c.checkOwner(); err != nil {
		return nil, err
	}
	if unlock, err = c.Lock(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(runDir, "owner"), []byte(c.Root+"\n"), 0o644); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (c *Cluster) checkOwner() error {
	data, err := os.ReadFile(filepath.Join(runDir, "owner"))
	if err != nil {
		return nil
	}
	owner := strings.TrimSpace(string(data))
	if _, err := os.Stat(owner); owner != c.Root && err == nil {
		return fmt.Errorf("a cluster of %s runs on this machine: remove it with make -C %s down, or set WINKUBE_CLUSTER=x to run another one beside it", owner, owner)
	}
	return nil
}

// Running says whether the control plane and both nodes' processes run.
func (c *Cluster) Running() bool {
	if c.checkOwner() != nil {
		return false
	}
	for _, host := range c.Hosts() {
		for _, process := range host.processes {
			if process.wanted() && !process.Running() {
				return false
			}
		}
	}
	return true
}

// Status prints one line per process.
func (c *Cluster) Status(out io.Writer) {
	for _, host := range c.Hosts() {
		for _, process := range host.processes {
			if !process.wanted() && !process.Running() {
				continue
			}
			state := "down"
			if pid, ok := process.PID(); ok {
				state = fmt.Sprintf("up, pid %d, since %s", pid, process.Since().Format(time.TimeOnly))
			}
			fmt.Fprintf(out, "%-8s %-24s %-36s %s\n", host.Name, process.Name, state, process.Log())
		}
	}
}
