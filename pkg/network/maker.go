package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// Maker implements the States of one mode. New creates one, which touches nothing before its first call. The Manager calls Make, Reapply and
// Reconnect from one goroutine and Run from another.
type Maker interface {
	// Make implements in.State, which is Ready. The Manager calls it at its start, after hints and Kick, and every 30 seconds (5 before Server 2019).
	// It must be idempotent: list once, compare, write the difference.
	//
	// Made.Warning is valid with and without an error. Made.State is set once the host has it. Errors: a *Refusal lasts until an administrator acts,
	// and no new pod starts; Made.State then is the state of running pods. Any other error may be temporary: the Manager retries after a back-off,
	// and a network that was ready stays so.
	Make(ctx context.Context, in Input) (Made, error)
	// Reapply restores what the system lost of s, a result of Make, without querying the engine. It runs directly after a hint when a whole Make is
	// not due yet. It is idempotent. The Manager logs an error; the next Make returns it again.
	Reapply(ctx context.Context, s State) error
	// Reconnect repairs lost connections of pods, or stops their containers so that they are recreated. It runs after each Make without an error. An
	// error that wraps a *Pending is not a failure: the Manager calls it again after that time.
	Reconnect(ctx context.Context, made Made) error
	// Run does the mode's background work (watching, garbage collection) until ctx ends, and returns when all of its goroutines have ended.
	Run(ctx context.Context)
	// Attacher returns the part that connects pods, and completes what the engine reports about them. It is used for each pod, also concurrently,
	// before and after the first Make.
	Attacher() pod.Attacher
}

// Input is the input of Make.
type Input struct {
	State        State // what Plan derived from Facts
	Facts        Facts
	Surroundings Surroundings
	Annotations  map[string]string // annotations of the Node that concern tunnels
}

// Made is the result of Make.
type Made struct {
	State State // zero: not implemented
	// Found is the engine's network as it was before; nil: Make has just created it, or the mode needs none.
	Found *pod.EngineNetwork
	// Warning is a fault of the traffic between pods of this node and others that does not prevent pods from starting; no Reason: none.
	Warning Condition
}

// Refusal says why pods cannot start until an administrator acts.
type Refusal struct {
	Reason string // of the Node's condition
	Err    error  // what is wrong, and what to do
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the cause, for errors.Is.
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(reason string, err error) error { return &Refusal{reason, err} }

// Pending is an error that may resolve itself in time.
type Pending struct {
	In  time.Duration // until the next attempt
	Err error
}

// Error returns the message.
func (p *Pending) Error() string { return p.Err.Error() }

// Unwrap returns the cause, for errors.Is.
func (p *Pending) Unwrap() error { return p.Err }

// shared is the common input of the Makers of all modes.
type shared struct {
	Parts
	cfg    Config
	places *placements
	wake   wake.Signal // makes the Manager compare again
}

// plain is embedded in Makers whose Make does everything and whose pods the engine connects.
type plain struct{}

// Reapply implements Maker.
func (plain) Reapply(context.Context, State) error { return nil }

// Run implements Maker.
func (plain) Run(context.Context) {}

// Attacher implements Maker.
func (plain) Attacher() pod.Attacher { return connected{} }

// announcer publishes how other nodes reach this node's tunnels.
type announcer struct{ node Node }

// announce sets the Node's annotations to those of s; have are the current ones. A State without tunnels removes ours.
func (a announcer) announce(ctx context.Context, have map[string]string, s State) error {
	changes := vxlan.Changes(have, vxlan.Annotations(s.Devices, have))
	if len(changes) == 0 {
		return nil
	}
	if err := a.node.Annotate(ctx, changes); err != nil {
		return fmt.Errorf("cannot announce this node's tunnel to other nodes: %w", err)
	}
	return nil
}

// keepServing continues to serve the pods of an engine network whose range is no longer the Node's, and refuses new ones: a network is never
// recreated under running pods.
func keepServing(ctx context.Context, cfg Config, host Host, in Input, have pod.EngineNetwork) (Made, error) {
	refusal := fmt.Errorf("the Node's pod CIDR is %s, but pods run on the engine's network %q with %s; drain this node, and the kubelet will recreate the network",
		Join(in.State.Network.Subnets), have.Name, Join(have.Subnets))
	facts := in.Facts
	facts.PodCIDRs = nil
	for _, s := range have.Subnets {
		facts.PodCIDRs = append(facts.PodCIDRs, s.String())
	}
	var made Made
	old, err := Plan(cfg, facts)
	if err == nil && old.Ready.Ready {
		old.Rules = guarded(facts, &have, old.Rules)
		if err = host.Apply(ctx, old); err == nil {
			old.Ready = Condition{Reason: rangeChanged, Message: refusal.Error()}
			made.State = old
		}
	}
	return made, refuse(rangeChanged, errors.Join(refusal, err))
}
