package app

import (
	"context"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/containers"
	"github.com/winkube/winkube/pkg/docker/networks"
	"github.com/winkube/winkube/pkg/pod"
	routereport "github.com/winkube/winkube/pkg/report"
)

// Substitutes for the cluster that the pod network expects.
type (
	// recordEngine adapts the engine to package network.
	recordEngine struct {
		*networks.Store
		*containers.Runtime
		engine *docker.Engine
	}
	recordNode    struct{ changed chan<- error }
	recordPods    struct{}
	recordProber  struct{}
	recordReports struct{}
)

// Version implements network.Engine.
func (e recordEngine) Version(ctx context.Context) (string, error) {
	info, err := e.engine.Client.Info(ctx)
	return info.Version, err
}

// Annotate implements network.Node.
func (recordNode) Annotate(context.Context, map[string]*string) error { return nil }

// Event implements network.Node.
func (recordNode) Event(string, string, string) {}

// NetworkChanged implements network.Node.
func (n recordNode) NetworkChanged(ready error) {
	select {
	case n.changed <- ready:
	default: // no one is waiting
	}
}

// DNS implements network.Pods.
func (recordPods) DNS(*v1.Pod) (pod.DNS, error) { return pod.DNS{}, nil }

// Event implements network.Pods.
func (recordPods) Event(string, string, string, string, string, string) {}

// ToServer implements network.Prober.
func (recordProber) ToServer(context.Context, netip.Addr) error { return nil }

// ToPods implements network.Prober.
func (recordProber) ToPods(context.Context, netip.Addr, netip.Prefix) error { return nil }

// Read implements network.Reports.
func (recordReports) Read() ([]routereport.Trouble, error) { return nil, nil }

// Watch implements network.Reports.
func (recordReports) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}
