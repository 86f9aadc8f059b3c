package kubelet

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
	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// CgroupConfig says which cgroups pods get. The zero value is none.
type CgroupConfig struct {
	PerQoS  bool   // pods and QoS classes have cgroups of their own (cgroupsPerQOS); only on Linux
	Root    string // below which they are (cgroupRoot); "": the top
	MaxPids int64  // of one pod (podPidsLimit); 0: no limit
	// Capacity is what the machine has: cpu, memory, and pid.
	Capacity v1.ResourceList
	Enforce  bool            // pods together are held to Capacity without Reserved (enforceNodeAllocatable: pods), else to Capacity
	Reserved v1.ResourceList // for the agents and the system
	// HugePages are the kernel's page sizes: a pod that does not ask for some gets none of it.
	HugePages map[uint64]uint64
}

// nodeGroup is the cgroup of all pods. Guaranteed pods are directly in it.
const nodeGroup = "kubepods"

// classGroups are where the pods of the classes are.
var classGroups = map[v1.PodQOSClass]cgroup.Group{
	v1.PodQOSGuaranteed: {nodeGroup},
	v1.PodQOSBurstable:  {nodeGroup, "burstable"},
	v1.PodQOSBestEffort: {nodeGroup, "besteffort"},
}

const podPrefix = "pod"

// cgroups is cgroup.Tree in the words of package pod, and in those of the node. The Tree is there before the first pod is looked at.
type cgroups struct {
	cfg   CgroupConfig
	tree  *cgroup.Tree
	ready atomic.Bool // tree is there
	clock clock.WithTicker
	event func(kind, reason, message string) // on the Node
	done  func(operation string, took time.Duration)
	// weight is what all burstable pods request, in thousandths of a CPU; the newest counts.
	weight chan int64
}

func newCgroups(cfg CgroupConfig, event func(kind, reason, message string), done func(operation string, took time.Duration)) *cgroups {
	return &cgroups{cfg: cfg, clock: clock.RealClock{}, event: event, done: done, weight: make(chan int64, 1)}
}

func group(p *v1.Pod) cgroup.Group {
	class := podspec.QOSOf(p)
	return append(append(cgroup.Group{}, classGroups[class]...), podPrefix+string(p.UID))
}

func (c *cgroups) limits(p *v1.Pod, r podspec.Resources) cgroup.Limits {
	out := cgroup.Limits{Shares: r.Shares, Quota: r.Quota, Period: r.Period, Memory: r.Memory, Pids: c.cfg.MaxPids, HugePages: map[uint64]int64{}}
	requests := helper.PodRequests(p, helper.PodResourcesOptions{})
	for size := range c.cfg.HugePages {
		q := requests[v1.ResourceName(v1.ResourceHugePagesPrefix+resource.NewQuantity(int64(size), resource.BinarySI).String())]
		out.HugePages[size] = q.Value()
	}
	return out
}

// Parent implements pod.Cgroups.
func (c *cgroups) Parent(p *v1.Pod) string { return c.tree.Parent(group(p)) }

// Limit implements pod.Cgroups.
func (c *cgroups) Limit(ctx context.Context, p *v1.Pod, r podspec.Resources) error {
	begin, operation := c.clock.Now(), "create"
	if c.tree.Has(group(p)) {
		operation = "update"
	}
	err := c.tree.Set(ctx, group(p), c.limits(p, r))
	c.done(operation, c.clock.Since(begin))
	return err
}

// Limits implements pod.Cgroups.
func (c *cgroups) Limits(p *v1.Pod) (*podspec.Resources, error) {
	have, exists, err := c.tree.Get(group(p), c.limits(p, podspec.PodResourcesOf(p)))
	if err != nil || !exists {
		return nil, err
	}
	return &podspec.Resources{Shares: have.Shares, Quota: have.Quota, Period: have.Period, Memory: have.Memory}, nil
}

// Remove implements pod.Cgroups. The class of a pod that is known by its UID alone is found by looking.
func (c *cgroups) Remove(ctx context.Context, uid types.UID) error {
	begin := c.clock.Now()
	var errs []error
	for _, class := range classGroups {
		errs = append(errs, c.tree.Remove(ctx, append(append(cgroup.Group{}, class...), podPrefix+string(uid))))
	}
	c.done("destroy", c.clock.Since(begin))
	return errors.Join(errs...)
}

// Leftovers implements pod.Cgroups.
func (c *cgroups) Leftovers() ([]types.UID, error) {
	var out []types.UID
	for _, class := range classGroups {
		names, err := c.tree.Children(class)
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

// start finds the hierarchies, as the engine uses them, and makes the cgroups above the pods'. What is there already keeps its limits
// until run has looked at them: its pods may use more.
// driver is the engine's: cgroupfs, systemd, or none.
func (c *cgroups) start(ctx context.Context, driver string) (err error) {
	if driver == "none" {
		return errors.New("the engine limits nothing by cgroups (docker info: Cgroup Driver: none, as when it runs without root): " +
			"let it have them, or switch cgroups of pods off with --cgroups-per-qos=false")
	}
	if c.tree, err = cgroup.Open(cgroup.Config{Root: c.cfg.Root, Systemd: driver == "systemd", Runner: command.New()}); err != nil {
		return err
	}
	c.ready.Store(true)
	for _, level := range []struct {
		class  v1.PodQOSClass
		limits cgroup.Limits
	}{
		{v1.PodQOSGuaranteed, c.cfg.nodeLimits()}, {v1.PodQOSBurstable, cgroup.Limits{Shares: podspec.SharesOf(0)}}, {v1.PodQOSBestEffort, cgroup.Limits{Shares: podspec.SharesOf(0)}},
	} {
		_, exists, err := c.tree.Get(classGroups[level.class], level.limits)
		if err == nil && (!exists || level.class == v1.PodQOSBestEffort) {
			err = c.tree.Set(ctx, classGroups[level.class], level.limits)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// place is the cgroup of all pods, for measuring; "" where there is none.
func (c *cgroups) place() cgroup.Place {
	if c == nil || !c.ready.Load() {
		return ""
	}
	return c.tree.Place(classGroups[v1.PodQOSGuaranteed])
}

// nodeLimits are what all pods together are held to, upstream's figures: memory is not reduced by what eviction keeps free, or pods
// could never come near it.
func (c CgroupConfig) nodeLimits() cgroup.Limits {
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

// enforceRetry is how long pods get to come below a limit that was lowered.
const enforceRetry = time.Minute

// run keeps the cgroups above the pods' as they should be until ctx ends.
func (c *cgroups) run(ctx context.Context) {
	retry := c.clock.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C():
			if err := c.tree.Set(ctx, classGroups[v1.PodQOSGuaranteed], c.cfg.nodeLimits()); err != nil {
				klog.ErrorS(err, "Cannot hold pods to what is allocatable")
				c.event(v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", fmt.Sprintf("Failed to update Node Allocatable Limits %q: %v", nodeGroup, err))
				retry.Reset(enforceRetry)
				continue
			}
			c.event(v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
		case milli := <-c.weight:
			if err := c.tree.Set(ctx, classGroups[v1.PodQOSBurstable], cgroup.Limits{Shares: podspec.SharesOf(milli)}); err != nil {
				klog.ErrorS(err, "Cannot weigh the burstable pods") // the next change tries again
			}
		}
	}
}

// weighed is an Admitter that tells what the burstable pods which it let in request of CPU.
type weighed struct {
	pod.Admitter
	requests map[types.UID]int64 // thousandths of a CPU
	changed  chan int64          // holds the newest sum alone
}

func newWeighed(inner pod.Admitter, changed chan int64) *weighed {
	return &weighed{Admitter: inner, requests: map[types.UID]int64{}, changed: changed}
}

// Admit implements pod.Admitter.
func (w *weighed) Admit(p *v1.Pod) *pod.Rejection { return w.hold(p, w.Admitter.Admit(p)) }

// Adopt implements pod.Admitter.
func (w *weighed) Adopt(p *v1.Pod) {
	w.Admitter.Adopt(p)
	w.hold(p, nil)
}

// Resize implements pod.Admitter.
func (w *weighed) Resize(p *v1.Pod) *pod.Rejection { return w.hold(p, w.Admitter.Resize(p)) }

// Release implements pod.Admitter.
func (w *weighed) Release(uid types.UID) {
	w.Admitter.Release(uid)
	if _, held := w.requests[uid]; held {
		delete(w.requests, uid)
		w.tell()
	}
}

func (w *weighed) hold(p *v1.Pod, no *pod.Rejection) *pod.Rejection {
	if no == nil && podspec.QOSOf(p) == v1.PodQOSBurstable {
		requests := helper.PodRequests(p, helper.PodResourcesOptions{})
		w.requests[p.UID] = requests.Cpu().MilliValue()
		w.tell()
	}
	return no
}

func (w *weighed) tell() {
	var sum int64
	for milli := range maps.Values(w.requests) {
		sum += milli
	}
	select {
	case <-w.changed:
	default:
	}
	w.changed <- sum
}
