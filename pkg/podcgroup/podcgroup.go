// Package podcgroup maintains the control groups of pods (Linux): one for all pods, below it one for each QoS class, and one for each pod.
//
//	docker's cgroup driver --Manager.Start--> cgroup.Tree
//	admitted burstable pods --Admitter--> weight of their class --Manager.Run--> cgroup.Tree
//	a pod's worker --pod.Cgroups--> limits of the pod's cgroup --> cgroup.Tree
//
// The limits follow upstream's rules; their calculation is pure.
package podcgroup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	helper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/wake"
)

// Config says where pods' cgroups are and what all pods together may use.
type Config struct {
	Root    string // parent cgroup (cgroupRoot); "": the top
	MaxPids int64  // of one pod (podPidsLimit); 0: no limit
	Driver  string // in the configuration (cgroupDriver); "": none. The engine's is used
	// Capacity is the machine's cpu, memory and pid capacity.
	Capacity v1.ResourceList
	Enforce  bool            // limit all pods together to Capacity minus Reserved (enforceNodeAllocatable: pods), otherwise to Capacity
	Reserved v1.ResourceList // for the agents and the system
	// HugePages are the kernel's page sizes: a pod gets none of a size that it does not request.
	HugePages map[uint64]uint64
	Note      NoteFile // where Start notes the place
}

// nodeGroup is the cgroup of all pods. Guaranteed pods are its direct children.
const nodeGroup = "kubepods"

// classGroups are the parent cgroups of the QoS classes' pods.
var classGroups = map[v1.PodQOSClass]cgroup.Group{
	v1.PodQOSGuaranteed: {nodeGroup},
	v1.PodQOSBurstable:  {nodeGroup, "burstable"},
	v1.PodQOSBestEffort: {nodeGroup, "besteffort"},
}

const podPrefix = "pod"

// Parts are the dependencies of a Manager.
type Parts struct {
	Events Events
	Counts Counts
	Clock  clock.WithTicker
}

// Events sends Events about the Node.
type Events interface {
	NodeEvent(kind, reason, message string)
}

// Counts measures operations on pods' cgroups: create, update or destroy.
type Counts interface {
	Cgroup(operation string, took time.Duration)
}

// Manager maintains the cgroups. It implements pod.Cgroups after Start. A nil Manager means that pods have no cgroups; only its Place may
// be called.
type Manager struct {
	cfg   Config
	parts Parts
	tree  *cgroup.Tree
	ready atomic.Bool // tree is set

	// weight is the sum of all burstable pods' CPU requests in thousandths of a CPU; changed wakes Run.
	weight  atomic.Int64
	changed wake.Signal
}

// New returns a Manager.
func New(cfg Config, parts Parts) *Manager {
	return &Manager{cfg: cfg, parts: parts, changed: wake.New()}
}

func group(p *v1.Pod) cgroup.Group {
	class := podspec.QOSOf(p)
	return append(append(cgroup.Group{}, classGroups[class]...), podPrefix+string(p.UID))
}

func (m *Manager) limits(p *v1.Pod, r podspec.Resources) cgroup.Limits {
	out := cgroup.Limits{Shares: r.Shares, Quota: r.Quota, Period: r.Period, Memory: r.Memory, Pids: m.cfg.MaxPids, NoSwap: true, HugePages: map[uint64]int64{}}
	requests := helper.PodRequests(p, helper.PodResourcesOptions{})
	for size := range m.cfg.HugePages {
		q := requests[v1.ResourceName(v1.ResourceHugePagesPrefix+resource.NewQuantity(int64(size), resource.BinarySI).String())]
		out.HugePages[size] = q.Value()
	}
	return out
}

// Parent implements pod.Cgroups.
func (m *Manager) Parent(p *v1.Pod) string { return m.tree.Parent(group(p)) }

// Limit implements pod.Cgroups.
func (m *Manager) Limit(ctx context.Context, p *v1.Pod, r podspec.Resources) error {
	begin, operation := m.parts.Clock.Now(), "create"
	if m.tree.Has(group(p)) {
		operation = "update"
	}
	err := m.tree.Set(ctx, group(p), m.limits(p, r))
	m.parts.Counts.Cgroup(operation, m.parts.Clock.Since(begin))
	return err
}

// Limits implements pod.Cgroups.
func (m *Manager) Limits(p *v1.Pod) (*podspec.Resources, error) {
	have, exists, err := m.tree.Get(group(p), m.limits(p, podspec.PodResourcesOf(p)))
	if err != nil || !exists {
		return nil, err
	}
	return &podspec.Resources{Shares: have.Shares, Quota: have.Quota, Period: have.Period, Memory: have.Memory}, nil
}

// MemoryKills implements pod.Cgroups.
func (m *Manager) MemoryKills(p *v1.Pod) (kills uint64, known bool) { return m.tree.OOMKills(group(p)) }

// End implements pod.Cgroups.
func (m *Manager) End(ctx context.Context, p *v1.Pod, id string) error {
	for _, class := range classGroups { // without its API object, the pod's class is unknown
		ended, err := m.tree.Kill(ctx, append(append(cgroup.Group{}, class...), podPrefix+string(p.UID)), id)
		if len(ended) > 0 {
			klog.InfoS("Killed leftover processes of a container that the engine reports as not running",
				"pod", klog.KObj(p), "container", id, "processes", ended)
		}
		if err != nil {
			return fmt.Errorf("cannot kill the remaining processes of container %s: %w", id, err)
		}
	}
	return nil
}

// Remove implements pod.Cgroups. It searches all classes, because it only knows the pod's UID.
func (m *Manager) Remove(ctx context.Context, uid types.UID) error {
	begin := m.parts.Clock.Now()
	var errs []error
	for _, class := range classGroups {
		errs = append(errs, m.tree.Remove(ctx, append(append(cgroup.Group{}, class...), podPrefix+string(uid))))
	}
	m.parts.Counts.Cgroup("destroy", m.parts.Clock.Since(begin))
	return errors.Join(errs...)
}

// Leftovers implements pod.Cgroups.
func (m *Manager) Leftovers() ([]types.UID, error) {
	var out []types.UID
	for _, class := range classGroups {
		names, err := m.tree.Children(class)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if uid, ok := strings.CutPrefix(name, podPrefix); ok {
				out = append(out, types.UID(uid))
			}
		}
	}
	return out, nil
}

// Start finds the hierarchies that the engine uses and creates the cgroups above the pods'. Existing ones keep their limits until Run
// compares them: their pods may use more. driver is the engine's: cgroupfs, systemd, or none, which is an error. Start must return before
// the first pod is handled.
func (m *Manager) Start(ctx context.Context, driver string) (err error) {
	if driver == "none" {
		return errors.New("the engine does not use cgroups (docker info: Cgroup Driver: none, as when it runs without root): " +
			"run it with cgroups, or disable pod cgroups with --cgroups-per-qos=false")
	}
	where := cgroup.Config{Root: m.cfg.Root, Systemd: driver == "systemd"}
	if m.tree, err = cgroup.Open(where); err != nil {
		return err
	}
	if err := m.cfg.Note.write(where); err != nil {
		return err
	}
	m.ready.Store(true)
	for _, level := range []struct {
		class  v1.PodQOSClass
		limits cgroup.Limits
	}{
		{v1.PodQOSGuaranteed, m.cfg.nodeLimits()}, {v1.PodQOSBurstable, cgroup.Limits{Shares: podspec.SharesOf(0)}}, {v1.PodQOSBestEffort, cgroup.Limits{Shares: podspec.SharesOf(0)}},
	} {
		_, exists, err := m.tree.Get(classGroups[level.class], level.limits)
		if err == nil && (!exists || level.class == v1.PodQOSBestEffort) {
			err = m.tree.Set(ctx, classGroups[level.class], level.limits)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Place is the cgroup of all pods, for measurements; "" if there is none yet. Any goroutine may call it.
func (m *Manager) Place() cgroup.Place {
	if m == nil || !m.ready.Load() {
		return ""
	}
	return m.tree.Place(classGroups[v1.PodQOSGuaranteed])
}

// nodeLimits are the limits of all pods together, with upstream's figures. They do not subtract the memory that eviction keeps free: pods
// could then never reach the eviction threshold.
func (c Config) nodeLimits() cgroup.Limits {
	left := func(name v1.ResourceName) resource.Quantity {
		q := c.Capacity[name].DeepCopy()
		if r, reserved := c.Reserved[name]; reserved && c.Enforce {
			q.Sub(r)
		}
		return q
	}
	cpu, memory, pids := left(v1.ResourceCPU), left(v1.ResourceMemory), left("pid")
	return cgroup.Limits{Shares: podspec.SharesOf(cpu.MilliValue()), Memory: max(memory.Value(), 0), Pids: max(pids.Value(), 0)}
}

// enforceRetry is how long pods have to get below a lowered limit.
const enforceRetry = time.Minute

// Run maintains the cgroups above the pods' until ctx ends. Start must be called first.
func (m *Manager) Run(ctx context.Context) {
	retry := m.parts.Clock.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C():
			if err := m.tree.Set(ctx, classGroups[v1.PodQOSGuaranteed], m.cfg.nodeLimits()); err != nil {
				klog.ErrorS(err, "Cannot limit pods to the node's allocatable resources; retrying")
				m.parts.Events.NodeEvent(v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", fmt.Sprintf("Failed to update Node Allocatable Limits %q: %v", nodeGroup, err))
				retry.Reset(enforceRetry)
				continue
			}
			m.parts.Events.NodeEvent(v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
		case <-m.changed:
			if err := m.tree.Set(ctx, classGroups[v1.PodQOSBurstable], cgroup.Limits{Shares: podspec.SharesOf(m.weight.Load())}); err != nil {
				klog.ErrorS(err, "Cannot set the CPU weight of the burstable pods") // the next change retries
			}
		}
	}
}

// Admitter sums the CPU requests of the burstable pods that inner admits: they determine the CPU weight of their class.
func (m *Manager) Admitter(inner pod.Admitter) pod.Admitter {
	return &weighing{Admitter: inner, requests: map[types.UID]int64{}, manager: m}
}

type weighing struct {
	pod.Admitter
	requests map[types.UID]int64 // thousandths of a CPU
	manager  *Manager
}

// Admit implements pod.Admitter.
func (w *weighing) Admit(p *v1.Pod) *pod.Rejection { return w.count(p, w.Admitter.Admit(p)) }

// Adopt implements pod.Admitter.
func (w *weighing) Adopt(p *v1.Pod) {
	w.Admitter.Adopt(p)
	w.count(p, nil)
}

// Resize implements pod.Admitter.
func (w *weighing) Resize(p *v1.Pod) *pod.Rejection { return w.count(p, w.Admitter.Resize(p)) }

// Release implements pod.Admitter.
func (w *weighing) Release(uid types.UID) {
	w.Admitter.Release(uid)
	if _, counted := w.requests[uid]; counted {
		delete(w.requests, uid)
		w.report()
	}
}

func (w *weighing) count(p *v1.Pod, no *pod.Rejection) *pod.Rejection {
	if no == nil && podspec.QOSOf(p) == v1.PodQOSBurstable {
		requests := helper.PodRequests(p, helper.PodResourcesOptions{})
		w.requests[p.UID] = requests.Cpu().MilliValue()
		w.report()
	}
	return no
}

func (w *weighing) report() {
	var sum int64
	for milli := range maps.Values(w.requests) {
		sum += milli
	}
	w.manager.weight.Store(sum)
	w.manager.changed.Send()
}
