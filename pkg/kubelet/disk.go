package kubelet

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
)

// figuresPatience is how long the engine may take to say where containers' files lie; what is known of them does without.
const figuresPatience = 10 * time.Second

// disks measures pods for who limits, ranks and tells what they take.
type disks struct {
	crew    *disk.Crew
	meter   *disk.Meter
	volumes interface {
		Places(*v1.Pod) ([]disk.Place, error)
		Dir(types.UID) string
	}
	files func(ctx context.Context, ids []string) (map[string]docker.Files, error)
}

// makeDisks makes what measures this host's disks.
func (k *Kubelet) makeDisks(volumes *volume.Manager) *disks {
	crew := disk.NewCrew(clock.RealClock{}, max(2, min(4, k.cfg.Facts.CPUs/2)))
	var parts disk.Parts
	if k.cfg.Platform.OS == "linux" { // on Windows a layer would have to be activated
		parts.Layer = func(ctx context.Context, id string) (uint64, error) {
			d, err := k.engine.Usage.DiskUsage(ctx, id)
			return d.Writable, err
		}
		if reader, err := cgroup.NewReader("/proc"); err == nil {
			parts.Removed = disk.FindRemoved("/proc", reader.Processes)
		} else {
			klog.ErrorS(err, "Files that are removed while they are open do not count")
		}
	}
	return &disks{crew: crew, meter: disk.NewMeter(crew, parts), volumes: volumes, files: k.engine.Usage.Files}
}

// measure measures pods: all that they take, or volumes alone.
func (d *disks) measure(ctx context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod {
	var ids []string
	for _, view := range whole {
		for _, c := range newest(view) {
			ids = append(ids, c.ID)
		}
	}
	files := map[string]docker.Files{}
	if len(ids) > 0 {
		bounded, cancel := context.WithTimeout(ctx, figuresPatience)
		defer cancel()
		var err error
		if files, err = d.files(bounded, ids); err != nil && ctx.Err() == nil {
			klog.V(2).InfoS("Cannot find where containers lie", "err", err)
		}
	}
	var subjects []disk.Subject
	for _, view := range whole {
		s := d.subject(view)
		s.Dir = d.volumes.Dir(view.Pod.UID)
		for _, c := range newest(view) {
			if at, ok := files[c.ID]; ok {
				s.Boxes = append(s.Boxes, boxOf(c, at))
			}
		}
		subjects = append(subjects, s)
	}
	for _, view := range volumes {
		subjects = append(subjects, d.subject(view))
	}
	return d.meter.Pods(ctx, terms, subjects)
}

func (d *disks) subject(view pod.View) disk.Subject {
	places, err := d.volumes.Places(view.Pod)
	if err != nil {
		klog.V(2).InfoS("Cannot measure a volume", "pod", klog.KObj(view.Pod), "err", err)
	}
	return disk.Subject{UID: view.Pod.UID, Places: places}
}

// newest are the newest attempts of a pod's containers.
func newest(view pod.View) (out []pod.Container) {
	seen := map[string]bool{}
	for _, c := range view.Observed.Containers {
		if !seen[c.Name] {
			seen[c.Name] = true
			out = append(out, c)
		}
	}
	return out
}

func boxOf(c pod.Container, at docker.Files) disk.Box {
	b := disk.Box{ID: c.ID, Name: c.Name, Layer: at.Layer, Volumes: at.Volumes, Mounted: at.Mounted, PID: c.HostPID}
	if at.LogFiles > 0 {
		b.Log = &disk.Amount{Bytes: at.Logs, Files: at.LogFiles}
	}
	return b
}

// apart says whether two directories, which stay where they are, lie on different file systems.
func (d *disks) apart(ctx context.Context, a, b string) (bool, error) {
	const differ = 1
	f := d.crew.Look(ctx, disk.Terms{Age: time.Hour, Patience: figuresPatience}, []disk.Ask{{Key: "whether " + a + " and " + b + " lie apart", Begin: func() disk.Pass {
		return func(func(host.Disk) bool) (out host.Disk, _ bool, _ error) {
			same, err := host.SameDisk(a, b)
			if !same {
				out.Used = differ
			}
			return out, true, err
		}
	}}})[0]
	switch {
	case !f.At.IsZero():
		return f.Used == differ, nil
	case f.Err != nil:
		return false, f.Err
	}
	return false, fmt.Errorf("the file system of %s or of %s does not answer", a, b)
}
