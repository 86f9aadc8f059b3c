package network

import (
	"context"
	"slices"
	"time"

	"github.com/winkube/winkube/pkg/network/endpoints"
	"github.com/winkube/winkube/pkg/pod"
)

// ownEndpoints is the part of a Maker for pods with endpoints that we create in HNS. It attaches them, collects those of deleted pods, and stops
// containers whose endpoints HNS has lost.
type ownEndpoints struct {
	endpoints *endpoints.Endpoints
	attacher  *attacher
	collect   collector
	stopper   *stopper
	name      string // of the network
}

func newOwnEndpoints(s shared, network string) ownEndpoints {
	made := endpoints.New(s.Windows, network)
	return ownEndpoints{endpoints: made, attacher: newAttacher(s, made), collect: collector{made, s.Engine, s.Clock}, stopper: newStopper(s), name: network}
}

// Reconnect implements Maker: HNS loses endpoints when it crashes. Reconnect stops their containers.
func (o ownEndpoints) Reconnect(ctx context.Context, _ Made) error {
	lost, cut := o.endpoints.Lost(), map[string]time.Time{}
	for _, container := range lost {
		cut[container] = o.stopper.cutSince(container)
	}
	o.stopper.cut = cut
	err := o.stopper.stop(ctx, o.name)
	stopped := slices.DeleteFunc(lost, func(container string) bool { _, waits := cut[container]; return waits })
	o.endpoints.Stopped(stopped)
	return err
}

// Run implements Maker.
func (o ownEndpoints) Run(ctx context.Context) {
	o.collect.once(ctx)
	o.collect.run(ctx)
}

// Attacher implements Maker.
func (o ownEndpoints) Attacher() pod.Attacher { return o.attacher }
