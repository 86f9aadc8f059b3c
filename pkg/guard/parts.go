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

// Parts are what a Guard works with.
type Parts struct {
	Pressure *Pressure // what the Guard finds; Node is sent when it is another
	Pods     Pods
	Disks    Disks
	Figures  Figures
	Images   Images
	Counts   Counts
	Events   Events
	Node     wake.Signal
	Alarm    Alarm // nil: only the regular looks notice that memory runs out
	Clock    clock.WithDelayedExecution
}

// Pods are those of this node (worker.Manager).
type Pods interface {
	Snapshot() []pod.View
	// Evict ends a pod. One that ends already, or is gone, is no error.
	Evict(types.UID, pod.Eviction)
	// Vacated returns what is closed when nothing of a pod runs and its volumes are gone.
	Vacated(types.UID) <-chan struct{}
	// RemoveLeftovers removes the containers of pods that have ended, whose logs could still be asked for.
	RemoveLeftovers()
}

// Disks measures disks (stats.Disks). Whatever hangs, it answers in time.
type Disks interface {
	// Pods measures what pods use: all of it, or volumes alone. It keeps to the terms.
	Pods(ctx context.Context, terms disk.Terms, whole, volumes []pod.View) map[types.UID]disk.Pod
	// ImageDisk measures the file system that holds the images.
	ImageDisk(context.Context) (host.Disk, error)
	// ImagesApart says whether that is another file system than the node's.
	ImagesApart(context.Context) (bool, error)
}

// Figures measures memory and processes, now (stats.Collector).
type Figures interface {
	// Node measures the node alone.
	Node(context.Context) *summary.NodeStats
	// Summary measures the pods as well, which costs more; onlyUsage leaves out disks and networks.
	Summary(ctx context.Context, onlyUsage bool) *summary.Summary
}

// Images are those of the engine (docker.Engine).
type Images interface {
	// ImageUses lists all images, and which of them a container, whoever made it, was made from.
	ImageUses(context.Context) ([]docker.ImageUse, error)
	// RemoveImage removes an image under all its names; the engine refuses what a container uses.
	RemoveImage(ctx context.Context, id string) error
}

// Counts counts what the Guard does (stats.Counters).
type Counts interface {
	// Evicted is called for each evicted pod: because of which signal, and how old the figures were that showed it.
	Evicted(signal string, age time.Duration)
	// ImageRemoved is called for each image that was removed: "space" or "age".
	ImageRemoved(reason string)
}

// Events takes Events about the Node and about pods.
type Events interface {
	NodeEvent(kind, reason, message string)
	PodEvent(namespace, name, uid, kind, reason, message string)
}

// Alarm reports that memory in use has grown.
type Alarm interface {
	// Arm has a token put into C when all processes, or all pods together, use so many bytes more than now; 0 or less: not asked for. Each
	// call replaces the one before.
	Arm(node, pods int64) error
	C() <-chan struct{}
}
