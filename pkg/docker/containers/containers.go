// Package containers gives access to the containers and sandboxes of an engine as pods see them. Observer reports their state and Applier carries out
// the steps of a plan. Both share a cache, so that the agent need not query what it has just done itself.
//
//	Step --package convert--> create, start, stop, remove --> Docker
//	Docker --list, inspect--> view (pure) --> Observed;   Docker --events--> Changes
//
// Containers without this node's labels and the matching name are never touched.
package containers

import (
	"context"
	"io"
	"net/netip"
	"time"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/accounts"
	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

// Config says how containers are created. docker.Config explains the fields.
type Config struct {
	Node            identity.Node
	Boot            string
	Platform        pod.Platform
	CPUs            int
	Infra           string // image of the sandbox
	LogMaxSize      int64
	LogMaxFiles     int
	CgroupParent    string
	SeccompRoot     string
	SeccompDefault  bool
	HostAddresses   func() ([]netip.Addr, error)
	HostIPs         func() ([]netip.Addr, error)
	CredentialSpecs func(prefix string, want map[string]string) error
	Hash            func(*v1.Container) string
	StopSlack       time.Duration
	Inspections     int // how many containers ObserveAll inspects in parallel
}

// Images is the part of the engine's image store that containers need.
type Images interface {
	// Pull fetches the image of the sandbox.
	Pull(ctx context.Context, name string, creds []pod.Credential) (img pod.Image, used int, err error)
	// Accounts returns the users and groups of a present image.
	Accounts(ctx context.Context, image string) (*accounts.Accounts, error)
	// Follow reads image events until ctx ends.
	Follow(ctx context.Context)
	// SweepHolders removes the containers that a killed agent used to read images.
	SweepHolders(ctx context.Context) error
}

// Logs is the part of the log store that containers need.
type Logs interface {
	// Read writes the log of an inspected container.
	Read(ctx context.Context, in container.InspectResponse, options *v1.PodLogOptions, stdout, stderr io.Writer) error
	// Link creates and Unlink removes the links by which tools find the log of a pod's container.
	Link(p *v1.Pod, labels map[string]string, id string)
	Unlink(p *v1.Pod, id string)
	// Sweep removes links to deleted logs.
	Sweep()
}

// Commands is the part of package exec that containers need.
type Commands interface {
	// EndCommands kills commands of probes and hooks. containers maps each command's id to its container; see exec.Executor.
	EndCommands(ctx context.Context, containers map[string]string, first chan<- bool)
}

// Parts are the dependencies of a Runtime.
type Parts struct {
	Engine   *engine.Client
	Images   Images
	Logs     Logs
	Commands Commands
}

// Runtime gives pods access to an engine. All methods may be called concurrently.
type Runtime struct {
	*Observer
	*Applier
}

var _ pod.Runtime = (*Runtime)(nil)

// New returns a Runtime. It does not connect.
func New(cfg Config, parts Parts) *Runtime {
	known, specs := newCache(), newRegistrySpecs(string(cfg.Node), cfg.CredentialSpecs, parts.Engine)
	applier := &Applier{engine: parts.Engine, node: cfg.Node, cfg: cfg, images: parts.Images, logs: parts.Logs, cache: known, specs: specs}
	applier.minOOM.Store(convert.MinOOMScoreAdj)
	return &Runtime{
		Observer: &Observer{
			engine: parts.Engine, node: cfg.Node, boot: cfg.Boot, os: cfg.Platform.OS, inspections: cfg.Inspections,
			images: parts.Images, logs: parts.Logs, commands: parts.Commands, cache: known, specs: specs,
		},
		Applier: applier,
	}
}
