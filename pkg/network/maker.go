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

// Maker brings about the States of one mode. New makes one, which touches nothing before its first call. The Manager calls Make, Reapply and
// Reconnect from one goroutine and Run from another.
type Maker interface {
	// Make brings about in.State, which is Ready. It is called when the Manager starts, after hints and Kick, and every 30 seconds (5 before
	// Server 2019), and must be idempotent: list once, compare, write the difference.
	//
	// Made.Warning counts with and without an error. Made.State is set once the host has it. Errors: a *Refusal stands until an administrator
	// acts, and no new pod starts; Made.State then is what running pods keep. Any other may pass: it is tried again after a back-off, and a
	// network that was ready stays so.
	Make(ctx context.Context, in Input) (Made, error)
	// Reapply restores what the system lost of s, which Make has brought about, without asking the engine. It is called directly after a hint
	// when a whole Make is not due yet. Idempotent. The Manager logs an error; the next Make returns it again.
	Reapply(ctx context.Context, s State) error
	// Reconnect gives pods back what they have lost of their connection, or stops their containers so that they are recreated. It is called
	// after each Make without an error. An error that wraps a *Pending is no failure: it is called again when that time has passed.
	Reconnect(ctx context.Context, made Made) error
	// Run does what the mode needs beside that (watching, garbage collection) until ctx ends, and returns when all of its goroutines have.
	Run(ctx context.Context)
	// Attacher connects pods, and completes what the engine has of them. It is called for each pod, also concurrently, before and after the
	// first Make.
	Attacher() pod.Attacher
}

// Input is what a Maker works from.
type Input struct {
	State        State // what Plan decided from Facts
	Facts        Facts
	Surroundings Surroundings
	Annotations  map[string]string // of the Node, as far as they concern tunnels
}

// Made is what a Maker has found and done.
type Made struct {
	State State // zero: not made
	// Found is the engine's network as it was before; nil: it was made just now, or the mode needs none.
	Found *pod.EngineNetwork
	// Warning is what stands between pods of this node and others, though pods can start; no Reason: nothing.
	Warning Condition
}

// Refusal says why pods cannot start until an administrator acts.
type Refusal struct {
	Reason string // of the Node's condition
	Err    error  // what is wrong, and what to do
}

// Error is the message.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap makes the cause known to errors.Is.
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(reason string, err error) error { return &Refusal{reason, err} }

// Pending is an error that time may heal.
type Pending struct {
	In  time.Duration // until the next attempt
	Err error
}

// Error is the message.
func (p *Pending) Error() string { return p.Err.Error() }

// Unwrap makes the cause known to errors.Is.
func (p *Pending) Unwrap() error { return p.Err }

// shared is what Makers of all modes are made from.
type shared struct {
	Parts
	cfg    Config
	places *placements
	wake   wake.Signal // has the Manager compare again
}

// plain is the part of a Maker that does nothing: the engine connects the pods, and its Make does all.
type plain struct{}

// Reapply implements Maker.
func (plain) Reapply(context.Context, State) error { return nil }

// Run implements Maker.
func (plain) Run(context.Context) {}

// Attacher implements Maker.
func (plain) Attacher() pod.Attacher { return connected{} }

// announcer announces to other nodes how to reach this node's tunnels.
type announcer struct{ node Node }

// announce makes the Node's annotations those of s; have is what they are. A State without tunnels takes back what we wrote.
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

// keepServing goes on serving the pods of an engine network whose range is no longer the Node's, and refuses new ones: a network is never
// rebuilt under running pods.
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
		if err = host.Apply(ctx, old); err == nil {
			old.Ready = Condition{Reason: rangeChanged, Message: refusal.Error()}
			made.State = old
		}
	}
	return made, refuse(rangeChanged, errors.Join(refusal, err))
}
