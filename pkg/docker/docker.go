// Package docker is the kubelet's last hop to the container engine: it implements pod.Runtime, pod.Images and pod.Executor on the
// Docker API, keeps the engine's networks for package network, and streams for the kubelet's HTTPS server.
//
//	Step --Convert (pure)--> create, start, stop, remove --> Docker
//	Docker --list, inspect--> observe (pure) --> Observed;   Docker --events--> Changes
//
// It is the only importer of Docker's client. Engines from 1.12 (API 1.24) on are served; the API version is negotiated, again after
// each restart of the engine, and never pinned. Containers that do not carry this node's labels, and the name that goes with
// them, are never touched.
package docker

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

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
	// Node is the value of the label identity.LabelNode on all that this agent makes. Containers with another value, or none, are never touched,
	// so that agents with different names can share an engine.
	Node string
	// Boot is another after each boot of this host, and the value of the label identity.LabelBoot on containers made during it; "": not known.
	Boot        string
	Platform    pod.Platform
	CPUs        int    // of this host, in all of Windows' processor groups, of which engines see one; 0: as many as the engine says
	InfraImage  string // of the sandbox; pulled when it is not present
	LogMaxSize  int64  // bytes of one log file (containerLogMaxSize); 0: no limit
	LogMaxFiles int    // log files per container (containerLogMaxFiles); 0: the engine's default
	// LogsDir is where tools look for pods' logs (upstream's podLogsDir), with containers beside it; "": logs get no names there.
	LogsDir      string
	CgroupParent string // Linux; "": the engine's default
	// SeccompRoot is the directory of localhostProfiles; SeccompDefault makes RuntimeDefault the profile of pods that name none.
	SeccompRoot    string
	SeccompDefault bool
	// HostAddresses gives Target.HostAddresses (Linux); nil: the engine publishes at all addresses, service addresses among them.
	HostAddresses func() ([]netip.Addr, error)
	// HostIPs gives Target.HostIPs; nil: any hostIP will do.
	HostIPs func() ([]netip.Addr, error)
	// CredentialSpecs has this host's registry hold credential specs, by name, where engines look for them: those of want, and no other whose
	// name begins with prefix (Windows); want is not kept. nil: there is no registry.
	CredentialSpecs func(prefix string, want map[string]string) error
	// Hash gives Container.Hash; nil: the hash stays empty.
	Hash func(*v1.Container) string

	CallTimeout          time.Duration // of one request that has no reason to take long; 0: 2 minutes
	StopSlack            time.Duration // how much longer than its grace period a stop may take; 0: 30 seconds
	PullProgressDeadline time.Duration // a pull without progress for so long is given up; 0: 1 minute
	Clock                clock.WithDelayedExecution
}

// What parts take from the engine's doors.
type (
	Info      = engine.Info
	ImageList = images.List
	ImageUse  = images.Use
	Files     = usage.Files
	Usage     = usage.Usage
	DiskUsage = usage.DiskUsage
)

type (
	logStore     = logs.Store
	imageStore   = images.Store
	networkStore = networks.Store
)

// Engine is a Docker engine. All methods may be called concurrently; a request that hangs holds up no other.
type Engine struct {
	*engine.Client
	*logStore
	*imageStore
	*exec.Executor
	*networkStore
	*usage.Meter
	cfg Config

	sweptHolders atomic.Bool // see sweepHolders
	specs        *registrySpecs
	minOOM       atomic.Int64 // the lowest oom_score_adj that the host allows, as far as known
	cache        cache
	warnOOM      sync.Once
	observers    int         // how many pods ObserveAll inspects at once
	begun        atomic.Bool // ObserveAll has succeeded once: commands of former agents have been seen to

	strangers strangers
}

var (
	_ pod.Runtime = (*Engine)(nil)
)

// New makes an Engine. It does not connect: an engine that is not there yet makes the calls fail, not New. An error means that
// cfg.Host (or DOCKER_HOST) is unusable.
func New(cfg Config) (*Engine, error) { return build(cfg, seams{inspections: 8}) }

// seams are what tests put other values into.
type seams struct {
	inspections int // how many containers ObserveAll inspects at once
	kill        func(pid int, containerID string)
}

func build(cfg Config, s seams) (*Engine, error) {
	setDefault(&cfg.StopSlack, 30*time.Second)
	setDefault(&cfg.PullProgressDeadline, time.Minute)
	c, err := engine.New(engine.Config{Host: cfg.Host, OS: cfg.Platform.OS, Timeout: cfg.CallTimeout, Clock: cfg.Clock})
	if err != nil {
		return nil, err
	}
	cfg.CallTimeout = c.Timeout()
	e := &Engine{Client: c, logStore: logs.New(c, cfg.Platform.OS, cfg.LogsDir), cfg: cfg,
		imageStore: images.New(c, identity.Node(cfg.Node), images.Config{OS: cfg.Platform.OS, Infra: cfg.InfraImage, Deadline: cfg.PullProgressDeadline}),
		specs:      newRegistrySpecs(cfg.Node, cfg.CredentialSpecs, c), observers: s.inspections, Executor: exec.New(c, exec.Config{OS: cfg.Platform.OS, Kill: s.kill})}
	e.networkStore, e.Meter = networks.New(c, e.node(), cfg.Platform.OS), usage.New(c, e.logStore, cfg.Platform.OS)
	e.minOOM.Store(minOOMScoreAdj)
	e.cache.init()
	return e, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// node is whose containers are this agent's.
func (e *Engine) node() identity.Node { return identity.Node(e.cfg.Node) }
