package stats

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/hcs"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

// Parts are where the figures come from.
type Parts struct {
	Pods    Pods
	Host    Host
	Disks   DiskFigures
	Engine  Engine
	Cgroups Cgroups
	Clock   clock.PassiveClock
}

// Pods are those of this node (worker.Manager).
type Pods interface {
	Snapshot() []pod.View
}

// Host measures the machine, and on Windows its containers. ThisHost is the one that we run on.
type Host interface {
	Load() (host.Load, error)
	Boot() (time.Time, error)
	// Adapters are the network adapters of Windows; none on Linux, whose interfaces are read below /proc.
	Adapters() ([]host.Adapter, error)
	// Container measures a container that the Host Compute Service runs; an error where that has none of this id.
	Container(id string) (hcs.Statistics, error)
}

// ThisHost is the machine that we run on.
type ThisHost struct{}

// Load implements Host.
func (ThisHost) Load() (host.Load, error) { return host.ReadLoad() }

// Boot implements Host.
func (ThisHost) Boot() (time.Time, error) { return host.BootTime() }

// Adapters implements Host.
func (ThisHost) Adapters() ([]host.Adapter, error) { return host.Adapters() }

// Container implements Host.
func (ThisHost) Container(id string) (hcs.Statistics, error) { return hcs.Measure(id) }

// DiskFigures measures disks (Disks). All of it keeps to the terms, whatever hangs.
type DiskFigures interface {
	PodDisks
	// FileSystem measures the file system that has the path.
	FileSystem(ctx context.Context, terms disk.Terms, path string) disk.Figure
	// ImageRoot is the directory in which the engine keeps images and containers.
	ImageRoot(ctx context.Context) (string, error)
}

// PodDisks measures what pods use of disks: all of it, or volumes alone. It keeps to the terms, whatever hangs.
type PodDisks interface {
	Pods(ctx context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod
}

// Engine is Docker.
type Engine interface {
	// Usage measures a container where there are no cgroups, and the Host Compute Service does not know it.
	Usage(ctx context.Context, id string) (docker.Usage, error)
	// PID is the process of the engine; 0 where it is not known. Only on Linux.
	PID() int
}

// Cgroups are those of pods. Only on Linux.
type Cgroups interface {
	// Place is the cgroup of all pods as a process in it would see it in /proc/PID/cgroup; "": there is none.
	Place() cgroup.Place
}

// Volumes are those of pods (volume.Manager).
type Volumes interface {
	// Plugin names the kind of a pod's volume as upstream does; "": it is not known yet.
	Plugin(*v1.Pod, *v1.Volume) string
}
