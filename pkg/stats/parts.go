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

// Parts are the sources of the figures.
type Parts struct {
	Pods    Pods
	Host    Host
	Disks   DiskFigures
	Engine  Engine
	Cgroups Cgroups
	Clock   clock.PassiveClock
}

// Pods lists the pods of this node (worker.Manager).
type Pods interface {
	Snapshot() []pod.View
}

// Host measures the machine, and on Windows its containers. ThisHost is the local one.
type Host interface {
	Load() (host.Load, error)
	Boot() (time.Time, error)
	// Adapters are the network adapters of Windows; none on Linux, where interfaces are read from /proc.
	Adapters() ([]host.Adapter, error)
	// Container measures a container of the Host Compute Service; an error if the service has no such id.
	Container(id string) (hcs.Statistics, error)
}

// ThisHost is the local machine.
type ThisHost struct{}

// Load implements Host.
func (ThisHost) Load() (host.Load, error) { return host.ReadLoad() }

// Boot implements Host.
func (ThisHost) Boot() (time.Time, error) { return host.BootTime() }

// Adapters implements Host.
func (ThisHost) Adapters() ([]host.Adapter, error) { return host.Adapters() }

// Container implements Host.
func (ThisHost) Container(id string) (hcs.Statistics, error) { return hcs.Measure(id) }

// DiskFigures measures disks (Disks). It respects the terms even if a disk hangs.
type DiskFigures interface {
	PodDisks
	// FileSystem measures the file system that contains the path.
	FileSystem(ctx context.Context, terms disk.Terms, path string) disk.Figure
	// ImageRoot is the directory in which the engine keeps images and containers.
	ImageRoot(ctx context.Context) (string, error)
}

// PodDisks measures pods' disk usage: everything, or only volumes. It respects the terms even if a disk hangs.
type PodDisks interface {
	Pods(ctx context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod
}

// Engine is Docker.
type Engine interface {
	// Usage measures a container without cgroups that the Host Compute Service does not know.
	Usage(ctx context.Context, id string) (docker.Usage, error)
	// PID is the engine's process; 0 if unknown. Only on Linux.
	PID() int
}

// Cgroups are the pods' cgroups. Only on Linux.
type Cgroups interface {
	// Place is the cgroup of all pods in the form of /proc/PID/cgroup; "": there is none.
	Place() cgroup.Place
}

// Volumes answers questions about pods' volumes (volume.Manager).
type Volumes interface {
	// Plugin returns upstream's plugin name for a pod's volume; "": not known yet.
	Plugin(*v1.Pod, *v1.Volume) string
}
