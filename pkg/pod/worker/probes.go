package worker

import (
	"context"
	"hash/fnv"
	"math/bits"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// fraction is part/2^32 of d, which must not be negative.
func fraction(d time.Duration, part uint32) time.Duration {
	high, _ := bits.Mul64(uint64(d), uint64(part)<<32)
	return time.Duration(high)
}

type probeKind string

const (
	startupProbe   probeKind = "Startup"
	livenessProbe  probeKind = "Liveness"
	readinessProbe probeKind = "Readiness"
)

type probeKey struct {
	id   string // of the container
	kind probeKind
}

// probes are a worker's running probes: each is a goroutine that probes until it is cancelled and reports changes of its verdict.
type probes struct {
	*core
	running map[probeKey]context.CancelFunc
}

func newProbes(c *core) *probes { return &probes{core: c, running: map[probeKey]context.CancelFunc{}} }

// watch starts the probes that are due and stops the others: the startup probe first, the other two when the container counts as started.
// While the pod terminates, only readiness is probed. A startup or liveness probe that has failed does not run again until the container is
// replaced.
func (p *probes) watch(now time.Time) {
	memory := &p.seen.Memory
	due := map[probeKey]bool{}
	for _, c := range p.seen.Engine.Containers {
		kind, spec, ok := podspec.FindContainer(p.pod, c.Name)
		if c.State != pod.Running || !ok || kind == podspec.Ephemeral || kind == podspec.Init && !podspec.IsSidecar(spec) || !memory.PostStarted(spec, c.ID) || p.phase() == pod.Terminated {
			continue
		}
		run := memory.Run(c.ID)
		want := func(kind probeKind, probe *v1.Probe, when bool) {
			if probe == nil || !when {
				return
			}
			key := probeKey{c.ID, kind}
			due[key] = true
			if p.running[key] == nil {
				p.start(key, probe, spec, c, now)
			}
		}
		syncing := p.phase() == pod.Syncing && run.Stop.IsZero()
		started := memory.Started(spec, c.ID)
		want(startupProbe, spec.StartupProbe, syncing && !started && run.Probes.Startup != plan.Failed)
		want(livenessProbe, spec.LivenessProbe, syncing && started && run.Probes.Liveness != plan.Failed)
		want(readinessProbe, spec.ReadinessProbe, started)
	}
	for key, cancel := range p.running {
		if !due[key] {
			cancel()
			delete(p.running, key)
		}
	}
}

func (p *probes) start(key probeKey, probe *v1.Probe, spec *v1.Container, c pod.Container, now time.Time) {
	ctx, cancel := context.WithCancel(p.ctx)
	p.running[key] = cancel
	target := pod.ProbeTarget{ContainerID: c.ID, Ports: spec.Ports, Pod: p.pod, Container: spec.Name, Kind: string(key.kind)}
	if ips := p.addresses(); len(ips) > 0 {
		target.PodIP = ips[0]
	}
	for _, e := range spec.Env {
		if e.ValueFrom == nil {
			target.Env = append(target.Env, pod.Env{Name: e.Name, Value: e.Value})
		}
	}
	period := seconds(probe.PeriodSeconds, 10)
	wait := firstProbe(c.StartedAt, now, podspec.Seconds(int64(probe.InitialDelaySeconds)))
	if c.StartedAt.Before(p.agentStart) {
		// This agent is new and may have many containers to probe: spread the first probes over one period.
		wait = spread(key, period)
	}
	run := probing{parts: p.parts, key: key, probe: probe, container: spec, target: target, period: period, kind: c.Kind, pod: p.pod}
	changed := func(result plan.Result) { p.inbox.put(func() { p.changed(key, result) }) }
	p.crew.do(ctx, func(ctx context.Context) error { run.loop(ctx, wait, changed); return nil }, func(error) {})
}

// firstProbe is the wait before the first probe of a container that started at started by the engine's clock. A start in the future (the
// clock was set back, or the engine's clock is ahead) counts as now.
func firstProbe(started, now time.Time, initial time.Duration) time.Duration {
	return max(min(started.Add(initial).Sub(now), initial), 0)
}

// spread is a part of period that differs between containers but is constant for each.
func spread(key probeKey, period time.Duration) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(string(key.kind) + key.id))
	return fraction(period, h.Sum32())
}

// pause is the wait before the next probe. It ends at a multiple of a tenth of the period (at most a second) near the period's end, so that
// all probes of the node share these instants. An idle agent then wakes once for several probes; waking costs more than probing. Exec
// probes are not aligned, because each starts a process.
func pause(now time.Time, period time.Duration, command bool) time.Duration {
	if command {
		return period
	}
	return now.Add(period).Round(min(period/10, time.Second)).Sub(now)
}

func seconds(n int32, otherwise int) time.Duration {
	if n <= 0 {
		n = int32(otherwise)
	}
	return podspec.Seconds(int64(n))
}

// probing is one running probe. It shares nothing with the worker's loop.
type probing struct {
	parts     *Parts
	key       probeKey
	probe     *v1.Probe
	pod       *v1.Pod
	container *v1.Container
	kind      podspec.Kind
	target    pod.ProbeTarget
	period    time.Duration
}

// loop probes until ctx ends, for the first time after first, and calls changed with each new verdict.
func (p *probing) loop(ctx context.Context, first time.Duration, changed func(plan.Result)) {
	timer := p.parts.Clock.NewTimer(max(0, first))
	defer timer.Stop()
	verdict, last, run := plan.Unknown, plan.Unknown, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		timer.Reset(pause(p.parts.Clock.Now(), p.period, p.probe.Exec != nil))
		result := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if result == plan.Unknown {
			continue
		}
		if result != last {
			last, run = result, 0
		}
		run++
		threshold := int(max(p.probe.SuccessThreshold, 1))
		if result == plan.Failed {
			threshold = 3
			if p.probe.FailureThreshold > 0 {
				threshold = int(p.probe.FailureThreshold)
			}
		}
		if run < threshold || result == verdict {
			continue
		}
		verdict = result
		changed(result)
	}
}

// once runs the probe. As in upstream, a probe that could not run gives no verdict: an engine that does not answer is no reason to kill a
// container. A readiness probe counts as failed, though: otherwise an unreachable container would stay ready.
func (p *probing) once(ctx context.Context) plan.Result {
	within, cancel := context.WithTimeout(ctx, seconds(p.probe.TimeoutSeconds, 1))
	defer cancel()
	result, err := p.parts.Prober.Probe(within, p.probe.ProbeHandler, p.target)
	passed := result.OK && err == nil
	if passed && !result.Warning {
		return plan.Passed
	}
	if ctx.Err() != nil {
		return plan.Unknown
	}
	ref := podspec.ContainerReference(p.pod, p.container.Name, p.kind)
	if passed {
		p.parts.Events.Eventf(ref, v1.EventTypeWarning, "ProbeWarning", "%s probe warning: %s", p.key.kind, result.Detail)
		return plan.Passed
	}
	if err != nil {
		p.parts.Events.Eventf(ref, v1.EventTypeWarning, "Unhealthy", "%s probe errored and resulted in unknown state: %v", p.key.kind, err)
		if p.key.kind != readinessProbe {
			return plan.Unknown
		}
	} else {
		p.parts.Events.Eventf(ref, v1.EventTypeWarning, "Unhealthy", "%s probe failed: %s", p.key.kind, result.Detail)
	}
	return plan.Failed
}

// changed records a new verdict.
func (p *probes) changed(key probeKey, result plan.Result) {
	if p.running[key] == nil {
		return // the probe was stopped meanwhile
	}
	verdict := &p.seen.Memory.Note(key.id).Probes
	switch key.kind {
	case startupProbe:
		verdict.Startup = result
	case livenessProbe:
		verdict.Liveness = result
	case readinessProbe:
		verdict.Readiness = result
	}
}
