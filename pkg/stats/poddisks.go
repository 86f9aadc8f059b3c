package stats

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
)

const (
	// layersPatience is how long the engine may take to return the locations of containers' files; after that they are omitted.
	layersPatience = 10 * time.Second
	// rootPatience is how long the engine may take to return its image directory.
	rootPatience = 5 * time.Second
)

// Disks measures the disk usage of the node, its images and its pods, for all code that limits, ranks or reports it. Safe for concurrent use.
type Disks struct {
	root    string
	crew    *disk.Crew
	meter   *disk.Meter
	volumes Directories
	engine  Layers
}

// Directories returns the directories of volumes and pods (volume.Manager).
type Directories interface {
	Places(*v1.Pod) ([]disk.Place, error)
	Dir(types.UID) string
}

// Layers gives access to containers' files on the engine (docker.Engine).
type Layers interface {
	// Files are those of the containers with these ids. With an error, the result has the known ones.
	Files(ctx context.Context, ids []string) (map[string]docker.Files, error)
	// DiskUsage measures a container's writable layer. Only on Linux.
	DiskUsage(ctx context.Context, id string) (docker.DiskUsage, error)
	// ImageRoot is a directory of the file system on which the engine keeps images and containers.
	ImageRoot(ctx context.Context) (string, error)
}

// NewDisks returns a Disks. It uses OS, CPUs and Root of cfg.
func NewDisks(cfg Config, volumes Directories, engine Layers, clock clock.WithDelayedExecution) *Disks {
	crew := disk.NewCrew(clock, max(2, min(4, cfg.CPUs/2)))
	var parts disk.Parts
	if cfg.OS == "linux" { // on Windows a layer would have to be activated
		parts.Layer = func(ctx context.Context, id string) (uint64, error) {
			d, err := engine.DiskUsage(ctx, id)
			return d.Writable, err
		}
		if reader, err := cgroup.NewReader("/proc"); err == nil {
			parts.Removed = disk.FindRemoved("/proc", reader.Processes)
		} else {
			klog.ErrorS(err, "Cannot read cgroups; files that are deleted while they are open do not count as disk usage")
		}
	}
	return &Disks{root: cfg.Root, crew: crew, meter: disk.NewMeter(crew, parts), volumes: volumes, engine: engine}
}

// State is the progress of the measurements, for metrics.
func (d *Disks) State() disk.State { return d.meter.State() }

// FileSystem implements DiskFigures.
func (d *Disks) FileSystem(ctx context.Context, terms disk.Terms, path string) disk.Figure {
	return d.crew.Disk(ctx, terms, path)
}

// ImageRoot implements DiskFigures.
func (d *Disks) ImageRoot(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, rootPatience)
	defer cancel()
	return d.engine.ImageRoot(ctx)
}

// NodeDisk measures the node's file system. It returns an error if the disk hangs, unless its figures are known.
func (d *Disks) NodeDisk(ctx context.Context) (host.Disk, error) { return d.usage(ctx, d.root) }

// ImageDisk measures the file system that holds the images, as NodeDisk does.
func (d *Disks) ImageDisk(ctx context.Context) (host.Disk, error) {
	root, err := d.ImageRoot(ctx)
	if err != nil {
		return host.Disk{}, err
	}
	return d.usage(ctx, root)
}

// ImagesApart says whether the engine keeps images on a different file system than the node's.
func (d *Disks) ImagesApart(ctx context.Context) (bool, error) {
	root, err := d.ImageRoot(ctx)
	if err != nil {
		return false, err
	}
	return d.apart(ctx, d.root, root)
}

func (d *Disks) usage(ctx context.Context, path string) (host.Disk, error) {
	f := d.crew.Disk(ctx, disk.Terms{Patience: layersPatience}, path)
	switch {
	case !f.At.IsZero():
		return f.Disk, nil
	case f.Err != nil:
		return host.Disk{}, f.Err
	}
	return host.Disk{}, fmt.Errorf("the file system of %s does not answer", path)
}

// Pods implements PodDisks.
func (d *Disks) Pods(ctx context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod {
	var ids []string
	for _, view := range whole {
		for _, c := range newest(view) {
			ids = append(ids, c.ID)
		}
	}
	files := map[string]docker.Files{}
	if len(ids) > 0 {
		bounded, cancel := context.WithTimeout(ctx, layersPatience)
		defer cancel()
		var err error
		if files, err = d.engine.Files(bounded, ids); err != nil && ctx.Err() == nil {
			klog.V(2).InfoS("Cannot find the files of containers", "err", err)
		}
	}
	var subjects []disk.Subject
	for _, view := range whole {
		s := d.subject(view)
		s.Dir = d.volumes.Dir(view.Pod.UID)
		for _, c := range newest(view) {
			if at, ok := files[c.ID]; ok {
				s.Boxes = append(s.Boxes, diskBox(c, at))
			}
		}
		subjects = append(subjects, s)
	}
	for _, view := range volumes {
		subjects = append(subjects, d.subject(view))
	}
	return d.meter.Pods(ctx, terms, subjects)
}

func (d *Disks) subject(view pod.View) disk.Subject {
	places, err := d.volumes.Places(view.Pod)
	if err != nil {
		klog.V(2).InfoS("Cannot measure a volume", "pod", klog.KObj(view.Pod), "err", err)
	}
	return disk.Subject{UID: view.Pod.UID, Places: places}
}

// newest returns the newest attempts of a pod's containers.
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

func diskBox(c pod.Container, at docker.Files) disk.Box {
	b := disk.Box{ID: c.ID, Name: c.Name, Layer: at.Layer, Volumes: at.Volumes, Mounted: at.Mounted, PID: c.HostPID}
	if at.LogFiles > 0 {
		b.Log = &disk.Amount{Bytes: at.Logs, Files: at.LogFiles}
	}
	return b
}

// apart says whether two directories are on different file systems. The result is cached: directories do not move.
func (d *Disks) apart(ctx context.Context, a, b string) (bool, error) {
	const differ = 1
	f := d.crew.Look(ctx, disk.Terms{Age: time.Hour, Patience: layersPatience}, []disk.Ask{{Key: "whether " + a + " and " + b + " are on different file systems", Begin: func() disk.Pass {
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
