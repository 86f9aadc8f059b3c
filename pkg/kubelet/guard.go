package kubelet

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/node"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
)

// makeGuard makes what keeps the node from running out of memory, disk and processes. It asks pods and figures, which come after it since
// admission asks it.
func (k *Kubelet) makeGuard(volumes *volume.Manager) *guard.Guard {
	k.disks = k.makeDisks(volumes)
	parts := guard.Parts{
		Pods: func() []pod.View { return k.pods.Snapshot() }, Disk: k.disks.measure,
		PodEvent: func(p *v1.Pod, kind, reason, message string) {
			k.podEvent(p.Namespace, p.Name, string(p.UID), kind, reason, message)
		},
		Evict:     func(uid types.UID, e pod.Eviction) { k.pods.Evict(uid, e) },
		Evicted:   k.cfg.Counters.Evicted,
		Ended:     func(uid types.UID) <-chan struct{} { return k.pods.Vacated(uid) },
		Node:      func(ctx context.Context) *summary.NodeStats { return k.figures.Node(ctx) },
		Usage:     func(ctx context.Context) *summary.Summary { return k.figures.Summary(ctx, true) },
		Dedicated: k.imagesApart,
		Sweep:     func() { k.pods.Sweep() },
		Images:    guard.ImageParts{List: k.engine.Images.ImageUses, Remove: k.engine.Images.RemoveImage, Disk: k.imageDisk, Removed: k.cfg.Counters.ImageRemoved},
		Changed:   func() { k.node.Kick() },
		NodeEvent: k.nodeEvent, Clock: clock.RealClock{},
	}
	if k.cfg.Platform.OS == "linux" {
		alarm, err := cgroup.NewAlarm("/proc", func() cgroup.Place { return k.cgroups.place() })
		if err == nil {
			parts.Alarm = alarm
		} else {
			klog.ErrorS(err, "The kernel does not tell when memory runs out; it is looked at every ten seconds")
		}
	}
	return guard.New(k.cfg.Guard, parts)
}

// watchOOM says on the Node what the kernel had to end because the machine had no memory left.
func (k *Kubelet) watchOOM(ctx context.Context) error {
	err := host.WatchOOM(ctx, func(v host.Victim) {
		klog.InfoS("The machine is out of memory: the kernel has ended a process", "name", v.Name, "pid", v.PID)
		k.nodeEvent(v1.EventTypeWarning, "SystemOOM", fmt.Sprintf("the machine is out of memory: the kernel ended process %s (pid %d)", v.Name, v.PID))
	})
	if err != nil {
		klog.InfoS("No Event will tell of processes that the kernel ends when the machine is out of memory", "err", err)
	}
	return nil
}

// imagesApart says whether the engine keeps images on another file system than the one that is the node's.
func (k *Kubelet) imagesApart(ctx context.Context) (bool, error) {
	root, err := k.imageRoot(ctx)
	if err != nil {
		return false, err
	}
	return k.disks.apart(ctx, k.cfg.RootDir, root)
}

func (k *Kubelet) imageDisk(ctx context.Context) (host.Disk, error) {
	root, err := k.imageRoot(ctx)
	if err != nil {
		return host.Disk{}, err
	}
	return k.diskUsage(ctx, root)
}

// diskUsage measures a file system. One that hangs is an error, unless its figures are known.
func (k *Kubelet) diskUsage(ctx context.Context, path string) (host.Disk, error) {
	f := k.disks.crew.Disk(ctx, disk.Terms{Patience: figuresPatience}, path)
	switch {
	case !f.At.IsZero():
		return f.Disk, nil
	case f.Err != nil:
		return host.Disk{}, f.Err
	}
	return host.Disk{}, fmt.Errorf("the file system of %s does not answer", path)
}

// pressure is guard's Conditions in the words of package node.
func (k *Kubelet) pressure() node.Pressure {
	conditions := k.guard.Conditions()
	has := func(c v1.NodeConditionType) bool { return slices.Contains(conditions, c) }
	return node.Pressure{Memory: has(v1.NodeMemoryPressure), Disk: has(v1.NodeDiskPressure), PID: has(v1.NodePIDPressure)}
}
