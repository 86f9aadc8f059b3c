// Package containers is the door to the containers and sandboxes of an engine, as pods know them: Observer sees what there is, Applier
// does the steps of a plan, and both keep one cache, so that what this agent has just done need not be asked for.
//
//	Step --package convert--> create, start, stop, remove --> Docker
//	Docker --list, inspect--> view (pure) --> Observed;   Docker --events--> Changes
//
// Containers that do not carry this node's labels, and the name that goes with them, are never touched.
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

// Config says how containers are made. docker.Config explains the fields.
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

// Images is what is asked of the engine's images.
type Images interface {
	// Pull fetches the image of the sandbox.
	Pull(ctx context.Context, name string, creds []pod.Credential) (img pod.Image, used int, err error)
	// Accounts are the users and groups of a present image.
	Accounts(ctx context.Context, image string) (*accounts.Accounts, error)
	// Follow reads the events of images until ctx ends.
	Follow(ctx context.Context)
	// SweepHolders removes the containers by which an agent that was killed read images.
	SweepHolders(ctx context.Context) error
}

// Logs is what is asked of the containers' logs.
type Logs interface {
	// Read writes the log of a container that has been inspected.
	Read(ctx context.Context, in container.InspectResponse, options *v1.PodLogOptions, stdout, stderr io.Writer) error
	// Link and Unlink give the log of a pod's container the names by which tools find it, and take them away.
	Link(p *v1.Pod, labels map[string]string, id string)
	Unlink(p *v1.Pod, id string)
	// Sweep removes names of logs that are gone.
	Sweep()
}

// Commands is what is asked of the commands in containers.
type Commands interface {
	// EndCommands kills commands of probes and hooks, given by id with the container that each is in; see exec.Executor.
	EndCommands(ctx context.Context, containers map[string]string, first chan<- bool)
}

// Parts are the doors that containers need.
type Parts struct {
	Engine   *engine.Client
	Images   Images
	Logs     Logs
	Commands Commands
}

// Runtime is the pods' side of an engine. All methods may be called concurrently.
type Runtime struct {
	*Observer
	*Applier
}

var _ pod.Runtime = (*Runtime)(nil)

// New makes a Runtime. It does not connect.
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
