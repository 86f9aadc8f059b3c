// Package docker assembles the kubelet's access to a container engine: seven packages below this one share one connection.
//
//	New: engine (connection) --> logs, images, exec, networks --> usage, containers
//	containers: Step --convert--> create, start, stop, remove;  list, inspect --> Observed;  events --> Changes
//
// Below, identity (labels and names), accounts (users of an image) and convert (pod to request) do no I/O. No package outside imports Docker's
// client. Callers use the engine through interfaces that they declare; only the assembly imports the packages below.
package docker

import (
	"cmp"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/docker/containers"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/exec"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/docker/images"
	"github.com/winkube/winkube/pkg/docker/logs"
	"github.com/winkube/winkube/pkg/docker/networks"
	"github.com/winkube/winkube/pkg/docker/usage"
	"github.com/winkube/winkube/pkg/pod"
)

// Config says how to reach the engine and how to run containers on it.
type Config struct {
	Host string // unix:///path, npipe:////./pipe/name, tcp://host:port; "": DOCKER_HOST, or else the platform's default
	// Node is the value of the label identity.LabelNode on everything that this agent creates. It never touches containers with another value, or
	// none, so that agents with different names can share an engine.
	Node string
	// Boot identifies the current boot of this host. It is the value of the label identity.LabelBoot on containers created during it; "": unknown.
	Boot        string
	Platform    pod.Platform
	CPUs        int    // of this host, in all of Windows' processor groups, of which engines see one; 0: the engine's figure
	InfraImage  string // of the sandbox; pulled when it is not present
	LogMaxSize  int64  // bytes of one log file (containerLogMaxSize); 0: no limit
	LogMaxFiles int    // log files per container (containerLogMaxFiles); 0: the engine's default
	// LogsDir is where tools look for pods' logs (upstream's podLogsDir), next to the directory containers; "": no links to logs.
	LogsDir      string
	CgroupParent string // Linux; "": the engine's default
	// SeccompRoot is the directory of localhostProfiles; SeccompDefault makes RuntimeDefault the profile of pods that name none.
	SeccompRoot    string
	SeccompDefault bool
	// HostAddresses returns convert.Target.HostAddresses (Linux); nil: the engine publishes at all addresses, including service addresses.
	HostAddresses func() ([]netip.Addr, error)
	// HostIPs returns convert.Target.HostIPs; nil: any hostIP is allowed.
	HostIPs func() ([]netip.Addr, error)
	// CredentialSpecs sets this host's credential specs in the registry where engines look for them (Windows). It writes those of want, by name, and
	// deletes all others whose name begins with prefix. It does not keep want. nil: there is no registry.
	CredentialSpecs func(prefix string, want map[string]string) error
	// Hash returns Container.Hash; nil: the hash stays empty.
	Hash func(*v1.Container) string

	CallTimeout          time.Duration // of one request that is expected to be quick; 0: 2 minutes
	StopSlack            time.Duration // how far a stop may exceed its grace period; 0: 30 seconds
	PullProgressDeadline time.Duration // a pull without progress for this long is canceled; 0: 1 minute
	Clock                clock.WithDelayedExecution
}

// Types that callers exchange with the engine's parts.
type (
	Info      = engine.Info
	Fault     = engine.Fault
	Runtime   = engine.Runtime
	ImageList = images.List
	ImageUse  = images.Use
	Files     = usage.Files
	Usage     = usage.Usage
	DiskUsage = usage.DiskUsage
)

// Reasons of a Fault.
const (
	TooOld = engine.TooOld
	TooNew = engine.TooNew
)

// Faults is engine.Faults.
func Faults(info Info, err error, cgroupDriver string) []Fault {
	return engine.Faults(info, err, cgroupDriver)
}

// Engine is a Docker engine, as a set of narrow parts. Callers declare an interface for the part that they need.
type Engine struct {
	Client     *engine.Client      // the connection, and the engine's information about itself
	Logs       *logs.Store         // reads and follows logs
	Images     *images.Store       // pod.Images; garbage, image volumes
	Exec       *exec.Executor      // pod.Executor; attach, port forwarding
	Networks   *networks.Store     // for the pod network
	Usage      *usage.Meter        // for figures
	Containers *containers.Runtime // pod.Runtime
}

// New returns an Engine. It does not connect: if the engine is down, calls fail rather than New. An error means that cfg.Host (or DOCKER_HOST) is
// invalid.
func New(cfg Config) (*Engine, error) { return build(cfg, seams{inspections: 8}) }

// seams are values that tests replace.
type seams struct {
	inspections int // how many containers ObserveAll inspects in parallel
	kill        func(pid int, containerID string)
}

// build creates the parts in dependency order.
func build(cfg Config, s seams) (*Engine, error) {
	c, err := engine.New(engine.Config{Host: cfg.Host, OS: cfg.Platform.OS, Timeout: cfg.CallTimeout, Clock: cfg.Clock})
	if err != nil {
		return nil, err
	}
	node, system := identity.Node(cfg.Node), cfg.Platform.OS
	e := &Engine{
		Client:   c,
		Logs:     logs.New(c, system, cfg.LogsDir),
		Images:   images.New(c, node, images.Config{OS: system, Infra: cfg.InfraImage, Deadline: cmp.Or(cfg.PullProgressDeadline, time.Minute)}),
		Exec:     exec.New(c, exec.Config{OS: system, Kill: s.kill}),
		Networks: networks.New(c, node, system),
	}
	e.Usage = usage.New(c, e.Logs, system)
	e.Containers = containers.New(containers.Config{
		Node: node, Boot: cfg.Boot, Platform: cfg.Platform, CPUs: cfg.CPUs, Infra: cfg.InfraImage, LogMaxSize: cfg.LogMaxSize, LogMaxFiles: cfg.LogMaxFiles,
		CgroupParent: cfg.CgroupParent, SeccompRoot: cfg.SeccompRoot, SeccompDefault: cfg.SeccompDefault, HostAddresses: cfg.HostAddresses,
		HostIPs: cfg.HostIPs, CredentialSpecs: cfg.CredentialSpecs, Hash: cfg.Hash, StopSlack: cmp.Or(cfg.StopSlack, 30*time.Second), Inspections: s.inspections,
	}, containers.Parts{Engine: c, Images: e.Images, Logs: e.Logs, Commands: e.Exec})
	return e, nil
}
