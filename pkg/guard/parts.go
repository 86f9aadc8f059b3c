package guard

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/wake"
)

// Parts are the dependencies of a Guard.
type Parts struct {
	Pressure *Pressure // set by the Guard, which then sends Node
	Pods     Pods
	Disks    Disks
	Figures  Figures
	Images   Images
	Counts   Counts
	Events   Events
	Node     wake.Signal
	Alarm    Alarm // nil: only periodic checks notice a lack of memory
	Clock    clock.WithDelayedExecution
}

// Pods are the pods of this node (worker.Manager).
type Pods interface {
	Snapshot() []pod.View
	// Evict ends a pod. Evicting one that is ending or gone is not an error.
	Evict(types.UID, pod.Eviction)
	// Vacated returns a channel that is closed when a pod's containers have ended and its volumes are gone.
	Vacated(types.UID) <-chan struct{}
	// RemoveLeftovers removes the containers of ended pods, which are kept for their logs.
	RemoveLeftovers()
}

// Disks measures disks (stats.Disks). It answers in time even if a disk hangs.
type Disks interface {
	// Pods measures the disk usage of pods within the terms: everything for whole, only volumes for volumes.
	Pods(ctx context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod
	// ImageDisk measures the file system that holds the images.
	ImageDisk(context.Context) (host.Disk, error)
	// ImagesApart reports whether that is a different file system than the node's.
	ImagesApart(context.Context) (bool, error)
}

// Figures measures current memory and processes (stats.Collector).
type Figures interface {
	// Node measures only the node.
	Node(context.Context) *summary.NodeStats
	// Summary also measures the pods, which costs more; onlyUsage omits disks and networks.
	Summary(ctx context.Context, onlyUsage bool) *summary.Summary
}

// Images are the images of the engine (docker.Engine).
type Images interface {
	// ImageUses lists all images, and which of them any container uses, whoever created it.
	ImageUses(context.Context) ([]docker.ImageUse, error)
	// RemoveImage removes an image with all its names; the engine refuses to remove one that a container uses.
	RemoveImage(ctx context.Context, id string) error
}

// Counts counts the Guard's actions (stats.Counters).
type Counts interface {
	// Evicted is called for each evicted pod, with the signal and the age of the figures that caused the eviction.
	Evicted(signal string, age time.Duration)
	// ImageRemoved is called for each removed image; reason is "space" or "age".
	ImageRemoved(reason string)
}

// Events accepts Events about the Node and about pods.
type Events interface {
	NodeEvent(kind, reason, message string)
	PodEvent(namespace, name, uid, kind, reason, message string)
}

// Alarm reports growth of memory usage.
type Alarm interface {
	// Arm makes C receive a token when all processes, or all pods together, use so many bytes more than now; 0 or less:
	// no alarm. Each call replaces the previous one.
	Arm(node, pods int64) error
	C() <-chan struct{}
}
