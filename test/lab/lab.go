// Package lab runs a real Kubernetes cluster on this machine with our two binaries: a real API server, real engines and
// real containers.
//
//	tools, images (built here) -> hosts (network namespaces) -> control plane -> engines -> kubelet and proxy per node
//
// hack/cluster is its command line, test/e2e its tests. A host is a network namespace with one veth on a common bridge
// and no connection to the outside. Everything of a cluster is below State (_output/cluster), runDir and the namespaces
// and cgroups named wk-*; Down removes all of it and checks that nothing is left. The machine's engine, network and
// /etc are not changed.
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
	ServiceIP   = "10.96.0.1" // of the service "kubernetes"
	DNSAddress  = "10.96.0.10"
	DNSDomain   = "cluster.local"
	apiPort     = "6443"
)

// WINKUBE_CLUSTER names one of several clusters on the machine, of one checkout or of several: a few letters, "" for the
// default. Only names that they share include it; the networks are isolated, so that addresses are the same in each.
var (
	instance = os.Getenv("WINKUBE_CLUSTER")
	// prefix starts the names of namespaces and cgroups.
	prefix = strings.TrimSuffix("wk-"+instance, "-") + "-"
	// runDir holds sockets and the engines' state: on a tmpfs, and short, because a socket's path has at most 107
	// bytes.
	runDir = strings.TrimSuffix("/run/winkube-"+instance, "-")
)

// EngineAPIs are the engine versions that test/engineproxy can simulate.
var EngineAPIs = []string{"1.24", "1.41", "min1.44"}

// Cluster is a control plane and its nodes. Only one goroutine at a time may call its methods; those of its Processes
// are safe for concurrent use.
type Cluster struct {
	Root  string // the repository
	State string // files that exist as long as the cluster: logs, certificates, engines' data
	Tools string // built programs of others, and our sample program

	Control *Host
	Nodes   []*Host // two, or three with WINKUBE_NODES=3 in the environment
	spare   []*Host // the third node, if there are only two
	Peer    *Host   // of UpPeer
	Joiner  *Host   // of UpJoiner
	Windows []*Host // of UpWindows: win1 to win4

	// EngineAPI selects the engine version that kubelets see, one of EngineAPIs; "": their own engine, unchanged. It
	// applies at the next Up. New reads it from ENGINE_API in the environment.
	EngineAPI string

	// Engine is the engine of every host, one of Releases; "": Debian's. Set it before the first Up. New reads it from
	// ENGINE in the environment, otherwise from the running cluster.
	Engine string

	// Runtime is the default runtime of every engine: crun or RuncPrivileged; "": runc. Set it before the first Up. New reads it from RUNTIME
	// in the environment, otherwise from the running cluster.
	Runtime string

	// NetworkMode is the --network-mode of kubelets and proxies: host-gateway, overlay or cni. It applies at the next
	// Up. New reads it from NETWORK_MODE in the environment.
	NetworkMode string

	// ProxyMode is the --proxy-mode of proxies; "": their default. It applies at the next Up. New reads it from
	// PROXY_MODE in the environment.
	ProxyMode string

	// ProxyLacks is what the proxies' host keeps from them, see CheckProxyLacks; "": nothing. It applies at the next Up. New
	// reads it from PROXY_LACKS in the environment.
	ProxyLacks string

	// PodInterfaces is the --pod-interfaces of kubelets; "": their default. It applies at the next Up. New reads it
	// from POD_INTERFACES in the environment.
	PodInterfaces string

	// DualStack gives hosts, pods and services addresses of both families. Set it before the first Up. New reads it
	// from DUAL_STACK=1 in the environment.
	DualStack bool

	// Storage is what provisions volumes: StorageCSI, or "" for nothing. It applies at the next Up. New reads it from
	// STORAGE in the environment, otherwise from the running cluster.
	Storage string

	// ControlPlane is the minor version of the control plane; "": the version that we follow. Set it before the first
	// Up. New reads it from CONTROL_PLANE in the environment, otherwise from the running cluster.
	ControlPlane string

	steps *Steps
}

// KubeletInterfaces says whether the kubelets make the pods' interfaces.
func (c *Cluster) KubeletInterfaces() bool {
	return c.PodInterfaces == "kubelet" || c.PodInterfaces == "" && c.NetworkMode != "cni"
}

// New returns the cluster of the repository at root without changing the machine. It prints steps to out.
func New(root string, out io.Writer) *Cluster {
	addSystemDirs()
	c := &Cluster{
		Root:  root,
		State: filepath.Join(root, "_output", strings.TrimSuffix("cluster-"+instance, "-")),
		Tools: filepath.Join(root, "_output/tools"),
		steps: newSteps(out),

		EngineAPI:     os.Getenv("ENGINE_API"),
		Engine:        cmp.Or(os.Getenv("ENGINE"), runningRelease()),
		Runtime:       cmp.Or(os.Getenv("RUNTIME"), runningRuntime()),
		NetworkMode:   cmp.Or(os.Getenv("NETWORK_MODE"), "host-gateway"),
		ProxyMode:     os.Getenv("PROXY_MODE"),
		ProxyLacks:    os.Getenv("PROXY_LACKS"),
		DualStack:     os.Getenv("DUAL_STACK") == "1",
		PodInterfaces: os.Getenv("POD_INTERFACES"),
		Storage:       cmp.Or(os.Getenv("STORAGE"), runningStorage()),
		ControlPlane:  cmp.Or(os.Getenv("CONTROL_PLANE"), runningControlPlane()),
	}
	c.Control = c.newHost("control", netip.MustParseAddr("172.30.0.10"))
	c.Nodes = []*Host{
		c.newHost("node1", netip.MustParseAddr("172.30.0.11")),
		c.newHost("node2", netip.MustParseAddr("172.30.0.12")),
		c.newHost("node3", netip.MustParseAddr("172.30.0.15")),
	}
	c.Control.processes = append(c.controlProcesses(), c.storageProcesses()...)
	for i, node := range c.Nodes {
		node.number = i + 1
		node.processes = c.nodeProcesses(node)
	}
	if os.Getenv(NodesVariable) != "3" {
		c.Nodes, c.spare = c.Nodes[:2:2], c.Nodes[2:]
	}
	c.Peer = c.newPeer()
	c.Joiner = c.newJoiner()
	c.Windows = c.newWindows()
	return c
}

// NodesVariable is the environment variable that gives a cluster three nodes instead of two, if it is 3.
const NodesVariable = "WINKUBE_NODES"

// FindRoot returns the repository that contains the working directory.
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

// Node returns the host of that name; nil if there is none.
func (c *Cluster) Node(name string) *Host {
	for _, host := range c.machines() {
		if host.Name == name {
			return host
		}
	}
	return nil
}

// Up starts or repairs the cluster. It keeps running processes that are up to date, and builds and starts what is
// missing, dead or outdated. It returns when all nodes are Ready.
func (c *Cluster) Up(ctx context.Context) error {
	if err := CheckProxyLacks(c.ProxyLacks, c.ProxyMode); err != nil {
		return err
	}
	if err := CheckStorage(c.Storage); err != nil {
		return err
	}
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	steps := []step{
		{"packages", c.ensurePackages},
		{"plugins", c.ensurePlugins},
		{"engine's programs", c.upRelease},
		{"runtime", c.upRuntime},
		{"other control plane", c.upControlPlane},
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
	}
	if c.Storage != "" {
		steps = append(steps, step{"storage", c.upStorage})
	}
	return c.run(ctx, steps)
}

// BuildAll builds what Up, the tests and upstream's suite need, and starts nothing.
func (c *Cluster) BuildAll(ctx context.Context) error {
	return c.run(ctx, []step{
		{"packages", c.ensurePackages},
		{"plugins", c.ensurePlugins},
		{"engine's programs", func(ctx context.Context) error { return c.BuildEngine(ctx, c.Engine) }},
		{"build", c.Build},
		{"kubeadm, metrics-server", func(ctx context.Context) error {
			return errors.Join(c.buildTool(ctx, kubeadm), c.buildTool(ctx, metricsServer))
		}},
		{"suite", c.BuildSuite},
	})
}

// UpWithoutAgents is like Up, but without kubelet and proxy: for work on the lab itself.
func (c *Cluster) UpWithoutAgents(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	return c.run(ctx, []step{
		{"packages", c.ensurePackages},
		{"engine's programs", c.upRelease},
		{"runtime", c.upRuntime},
		{"other control plane", c.upControlPlane},
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

// Step runs do as a printed step, as Up does with its own steps.
func (c *Cluster) Step(ctx context.Context, name string, do func(context.Context) error) error {
	return c.steps.Run(ctx, name, do)
}

// claim reserves the cluster's names for this repository: names of namespaces are global, so a machine can run one
// cluster of a name at a time.
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

// Running reports whether the processes of the control plane and all nodes run.
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
