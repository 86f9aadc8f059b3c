// Package podtest has stateful fakes of everything that a worker.Manager uses. They validate requests as the real parts would, keep the
// results, and print their state as text.
//
//	worker.Manager <-> Engine (pod.Runtime, pod.Executor, pod.Prober), API (pod.Feed, pod.StatusWriter, pod.Objects), Disk (pod.Volumes), ...
//
// The fakes sleep only through package time, so that tests can run in a testing/synctest bubble.
package podtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Log collects what happened, as lines with the time since it was created. Lines of one instant are sorted, because goroutines have no
// order.
type Log struct {
	mu    sync.Mutex
	start time.Time
	lines []logLine
}

type logLine struct {
	at   time.Duration
	text string
}

// NewLog returns a Log that starts now.
func NewLog() *Log { return &Log{start: time.Now()} }

// Printf adds a line.
func (l *Log) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, logLine{time.Since(l.start), fmt.Sprintf(format, args...)})
}

// Take returns the lines so far and forgets them.
func (l *Log) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortStableFunc(l.lines, func(a, b logLine) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.text, b.text))
	})
	var b strings.Builder
	for _, line := range l.lines {
		fmt.Fprintf(&b, "%8.2fs %s\n", line.at.Seconds(), line.text)
	}
	l.lines = nil
	return b.String()
}

// Engine is a container engine. Its operations are quick but not instant: creating a sandbox takes 100 ms, a start 50 ms.
type Engine struct {
	Log *Log
	// Violations are requests that must never occur: starting a running container, starting one without a sandbox, removing a running one.
	Violations []string

	mu       sync.Mutex
	pods     map[types.UID]*pod.Observed
	down     bool
	failures []*failure
	stubborn map[string]bool // ids that ignore the stop signal
	hangs    map[string]time.Duration
	results  map[string]bool // of probes: "id kind"
	starts   map[string]int  // by pod/container/attempt
	watchers []chan types.UID
	cgroups  *Cgroups // nil: no cgroups
	forgets  string   // what to lose track of during its start: "sandbox" or a container's name
	orphans  map[string]bool
	Platform pod.Platform
	// OnApply is called at the beginning of every step, if set.
	OnApply func(step pod.Step)
}

type failure struct {
	action, container string
	times             int
	err               error
}

// NewEngine returns an empty Engine.
func NewEngine(log *Log, platform pod.Platform) *Engine {
	return &Engine{Log: log, pods: map[types.UID]*pod.Observed{}, stubborn: map[string]bool{}, hangs: map[string]time.Duration{}, results: map[string]bool{}, starts: map[string]int{}, orphans: map[string]bool{}, Platform: platform}
}

var errDown = errors.New("cannot connect to the engine")

// ObserveAll implements pod.Runtime.
func (e *Engine) ObserveAll(ctx context.Context) (map[types.UID]pod.Observed, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return nil, errDown
	}
	all := map[types.UID]pod.Observed{}
	for uid := range e.pods {
		all[uid] = e.copy(uid)
	}
	return all, ctx.Err()
}

// Observe implements pod.Runtime.
func (e *Engine) Observe(ctx context.Context, uid types.UID) (pod.Observed, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return pod.Observed{}, errDown
	}
	return e.copy(uid), ctx.Err()
}

func (e *Engine) copy(uid types.UID) pod.Observed {
	p := e.pods[uid]
	if p == nil {
		return pod.Observed{}
	}
	out := *p
	out.Sandboxes, out.Containers = slices.Clone(p.Sandboxes), slices.Clone(p.Containers)
	return out
}

// Changes implements pod.Runtime.
func (e *Engine) Changes(ctx context.Context) <-chan types.UID {
	in, out := make(chan types.UID, 1000), make(chan types.UID)
	e.mu.Lock()
	e.watchers = append(e.watchers, in)
	e.mu.Unlock()
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				e.mu.Lock()
				e.watchers = slices.DeleteFunc(e.watchers, func(c chan types.UID) bool { return c == in })
				e.mu.Unlock()
				return
			case uid := <-in:
				select {
				case out <- uid:
				case <-ctx.Done():
				}
			}
		}
	}()
	return out
}

// tell notifies watchers of a change; the lock is held.
func (e *Engine) tell(uid types.UID) {
	for _, c := range e.watchers {
		select {
		case c <- uid:
		default:
		}
	}
}

func (e *Engine) violate(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	e.Violations = append(e.Violations, text)
	e.Log.Printf("VIOLATION %s", text)
	return errors.New(text)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Apply implements pod.Runtime.
func (e *Engine) Apply(ctx context.Context, p *v1.Pod, step pod.Step) error {
	what := fmt.Sprintf("%s %s %s/%d", step.Action, p.Name, cmp.Or(step.Container, "sandbox"), step.Attempt)
	if step.Action == pod.StopContainer {
		what += fmt.Sprintf(" grace %s", step.Grace.Round(time.Millisecond))
	}
	e.Log.Printf("engine: %s", what)
	if e.OnApply != nil {
		e.OnApply(step)
	}
	if err := e.injected(step); err != nil {
		return err
	}
	switch step.Action {
	case pod.CreateSandbox:
		return e.createSandbox(ctx, p, step)
	case pod.StartContainer:
		return e.startContainer(ctx, p, step)
	case pod.StopContainer:
		return e.stopContainer(ctx, p, step)
	}
	if err := sleep(ctx, 10*time.Millisecond); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return errDown
	}
	defer e.tell(p.UID)
	mine := e.pods[p.UID]
	if mine == nil {
		return nil
	}
	switch step.Action {
	case pod.UpdateContainer:
		if c := e.find(step.ID); c == nil || step.Resources == nil || c.State != pod.Running {
			return e.violate("update of %s, which does not run or without resources", step.ID)
		} else if why := e.misplaced(p, "/pod"+string(p.UID), step.Resources); why != "" {
			return e.violate("update of %s: %s", step.ID, why)
		} else {
			c.Resources = step.Resources
		}
	case pod.StopSandbox:
		for i := range mine.Sandboxes {
			if mine.Sandboxes[i].ID == step.ID {
				mine.Sandboxes[i].Running, mine.Sandboxes[i].Addresses = false, nil
			}
		}
	case pod.RemoveSandbox:
		mine.Sandboxes = slices.DeleteFunc(mine.Sandboxes, func(s pod.Sandbox) bool { return s.ID == step.ID })
	case pod.RemoveContainer:
		for _, c := range mine.Containers {
			if c.ID == step.ID && c.State == pod.Running {
				return e.violate("remove %s while it runs", c.ID)
			}
		}
		mine.Containers = slices.DeleteFunc(mine.Containers, func(c pod.Container) bool { return c.ID == step.ID })
	default:
		return e.violate("unknown action %s", step.Action)
	}
	if len(mine.Containers)+len(mine.Sandboxes) == 0 {
		delete(e.pods, p.UID)
	}
	return nil
}

func (e *Engine) injected(step pod.Step) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return errDown
	}
	for _, f := range e.failures {
		if f.times > 0 && f.action == string(step.Action) && (f.container == "" || f.container == step.Container) {
			f.times--
			return f.err
		}
	}
	return nil
}

func (e *Engine) pod(p *v1.Pod) *pod.Observed {
	mine := e.pods[p.UID]
	if mine == nil {
		mine = &pod.Observed{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Grace: 30}
		if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
			mine.Grace = *g
		}
		e.pods[p.UID] = mine
	}
	return mine
}

// address differs between names and attempts but is the same in every run.
func address(name string, attempt int) netip.Addr {
	h := fnv.New32a()
	h.Write([]byte(name))
	sum := h.Sum32()
	return netip.AddrFrom4([4]byte{10, byte(sum >> 8), byte(sum), byte(attempt + 1)})
}

func (e *Engine) createSandbox(ctx context.Context, p *v1.Pod, step pod.Step) error {
	if step.Sandbox == nil {
		return e.violate("create-sandbox of %s without inputs", p.Name)
	}
	if err := sleep(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.tell(p.UID)
	mine := e.pod(p)
	if why := e.misplaced(p, step.Sandbox.CgroupParent, nil); why != "" {
		return e.violate("create-sandbox of %s: %s", p.Name, why)
	}
	for _, s := range mine.Sandboxes {
		if s.Running {
			return e.violate("second sandbox for %s while %s runs", p.Name, s.ID)
		}
		if e.orphans[s.ID] {
			return e.violate("second sandbox for %s while %s, which was forgotten, runs", p.Name, s.ID)
		}
	}
	mine.Sandboxes = slices.DeleteFunc(mine.Sandboxes, func(s pod.Sandbox) bool { return s.Unstarted })
	s := pod.Sandbox{ID: fmt.Sprintf("%s.sandbox.%d", p.Name, step.Attempt), Attempt: step.Attempt, Running: true, CreatedAt: time.Now()}
	if step.Sandbox.Network != "host" {
		s.Addresses = []netip.Addr{address(p.Name, step.Attempt)}
	}
	var err error
	if e.forgets == "sandbox" {
		s.Running, s.Unstarted, s.Addresses, err = false, true, nil, e.forget(s.ID)
	}
	mine.Sandboxes = slices.Insert(mine.Sandboxes, 0, s)
	return err
}

func (e *Engine) startContainer(ctx context.Context, p *v1.Pod, step pod.Step) error {
	if step.Inputs == nil {
		return e.violate("start-container of %s %s without inputs", p.Name, step.Container)
	}
	id := fmt.Sprintf("%s.%s.%d", p.Name, step.Container, step.Attempt)
	_, spec, _ := podspec.FindContainer(p, step.Container)
	e.mu.Lock()
	mine := e.pod(p)
	for _, c := range mine.Containers {
		if c.Name == step.Container && c.State == pod.Running {
			defer e.mu.Unlock()
			return e.violate("start %s while %s runs", id, c.ID)
		}
		if c.ID == id && c.State == pod.Exited {
			defer e.mu.Unlock()
			return e.violate("start %s again", id)
		}
		if c.Name == step.Container && e.orphans[c.ID] {
			defer e.mu.Unlock()
			return e.violate("start %s while %s, which was forgotten, runs", id, c.ID)
		}
	}
	if in := step.Inputs; in.SandboxID != "" && !slices.ContainsFunc(mine.Sandboxes, func(s pod.Sandbox) bool { return s.ID == in.SandboxID && s.Running }) {
		defer e.mu.Unlock()
		return fmt.Errorf("cannot join the network of container %s: it does not run", in.SandboxID)
	}
	now := time.Now()
	made := pod.Container{
		ID: id, Name: step.Container, Kind: step.Kind, Attempt: step.Attempt, SandboxID: step.Inputs.SandboxID, Hash: podspec.Hash(spec), State: pod.Created, CreatedAt: now,
		Image: spec.Image, ImageID: step.Inputs.Image.Ref,
	}
	if e.Platform.OS == "linux" {
		r := podspec.ResourcesOf(p, spec)
		made.Resources = &r
	}
	if why := e.misplaced(p, step.Inputs.CgroupParent, made.Resources); why != "" {
		defer e.mu.Unlock()
		return e.violate("start %s: %s", id, why)
	}
	if made.SandboxID == "" {
		made.Addresses = []netip.Addr{address(id, step.Attempt)}
	}
	mine.Containers = slices.DeleteFunc(mine.Containers, func(c pod.Container) bool { return c.ID == id })
	mine.Containers = slices.Insert(mine.Containers, 0, made)
	e.tell(p.UID)
	e.mu.Unlock()
	if err := sleep(ctx, 50*time.Millisecond); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.tell(p.UID)
	if e.forgets == step.Container {
		return e.forget(id)
	}
	if c := e.find(id); c != nil {
		e.starts[string(p.UID)+" "+id]++
		c.State, c.StartedAt = pod.Running, time.Now()
	}
	return nil
}

// misplaced says why a container cannot run in a cgroup; "" if it can.
func (e *Engine) misplaced(p *v1.Pod, parent string, r *podspec.Resources) string {
	if e.cgroups == nil {
		return ""
	}
	return e.cgroups.admits(p.UID, parent, r)
}

// running lists the pod's running containers.
func (e *Engine) running(uid types.UID) (out []pod.Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.copy(uid).Containers {
		if c.State == pod.Running {
			out = append(out, c)
		}
	}
	return out
}

// stopContainer ends a container 20 ms after the signal, or a stubborn one after the grace period.
func (e *Engine) stopContainer(ctx context.Context, p *v1.Pod, step pod.Step) error {
	e.mu.Lock()
	wait, code := 20*time.Millisecond, 0
	if e.stubborn[step.ID] {
		wait, code = step.Grace, 137
	}
	e.mu.Unlock()
	if err := sleep(ctx, wait); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.find(step.ID); c != nil && c.State == pod.Running {
		c.State, c.FinishedAt, c.ExitCode, c.Addresses = pod.Exited, time.Now(), code, nil
		e.tell(p.UID)
	}
	return nil
}

// find returns a container of any pod; the lock is held.
func (e *Engine) find(id string) *pod.Container {
	for _, p := range e.pods {
		for i := range p.Containers {
			if p.Containers[i].ID == id {
				return &p.Containers[i]
			}
		}
	}
	return nil
}
