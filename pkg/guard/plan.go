package guard

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/podspec"
)

// grace is the grace period of an evicted pod's containers, as upstream: what they write meanwhile makes it worse.
const grace = time.Second

// reason is status.reason of an evicted pod.
const reason = "Evicted"

// Messages in an evicted pod's status, in upstream's words, which end with a space.
const (
	messageEmptyDir  = "Usage of EmptyDir volume %q exceeds the limit %q. "
	messagePod       = "Pod ephemeral local storage usage exceeds the total limit of containers %s. "
	messageContainer = "Container %s exceeded its local ephemeral storage limit %q. "
)

// Signals of a pod's own limits in the metric of evictions, named as upstream.
const (
	signalEmptyDir  = "emptydirfs.limit"
	signalPod       = "ephemeralpodfs.limit"
	signalContainer = "ephemeralcontainerfs.limit"
)

// Limits are a pod's limits on disk.
type Limits struct {
	Volumes    map[string]resource.Quantity // sizeLimit of emptyDirs by name
	Containers map[string]resource.Quantity // limits.ephemeral-storage of app containers by name
	Pod        *resource.Quantity           // total of all containers; nil: no limit
}

func (l Limits) any() bool { return len(l.Volumes)+len(l.Containers) > 0 || l.Pod != nil }

// LimitsOf returns the limits of p. The kernel enforces the limit of an emptyDir in memory; on Windows, where it is on
// disk, it is treated like any other.
func LimitsOf(p *v1.Pod) Limits {
	l := Limits{Volumes: map[string]resource.Quantity{}, Containers: map[string]resource.Quantity{}}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Sign() > 0 {
			l.Volumes[v.Name] = *v.EmptyDir.SizeLimit
		}
	}
	for i := range p.Spec.Containers {
		if limit := p.Spec.Containers[i].Resources.Limits.StorageEphemeral(); limit.Sign() > 0 {
			l.Containers[p.Spec.Containers[i].Name] = *limit
		}
	}
	if limit, ok := helper.PodLimits(p, helper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]; ok && limit.Sign() > 0 {
		l.Pod = &limit
	}
	return l
}

// Usage is one pod's limits and its disk usage.
type Usage struct {
	Pod    *v1.Pod
	Limits Limits
	Taken  disk.Pod
}

// container returns the bytes that a container uses: logs, root file system and volumes of its image.
func (u Usage) container(name string) (bytes uint64) {
	for _, c := range u.Taken.Containers {
		if c.Name == name {
			bytes += c.Sum().Bytes
		}
	}
	return bytes
}

// Eviction is a pod that must end.
type Eviction struct {
	Pod     *v1.Pod
	Message string
	Signal  string // kind of limit
}

// Plan returns the pods that must end, and why. It is pure, and treats each pod separately. Static pods and pods of the
// system's priority classes are never evicted. (upstream: localStorageEviction)
func Plan(usages []Usage) []Eviction {
	var out []Eviction
	for _, u := range usages {
		if signal, message := u.excess(); message != "" && !podspec.Critical(u.Pod) {
			out = append(out, Eviction{u.Pod, message, signal})
		}
	}
	return out
}

// excess returns the exceeded limit; "": none.
func (u Usage) excess() (signal, message string) {
	over := func(bytes uint64, limit resource.Quantity) bool {
		return limit.CmpInt64(int64(min(bytes, 1<<63-1))) < 0
	}
	for _, v := range u.Taken.Volumes {
		if limit, ok := u.Limits.Volumes[v.Volume]; ok && v.EmptyDir && !v.Memory && over(v.Used, limit) {
			return signalEmptyDir, fmt.Sprintf(messageEmptyDir, v.Volume, limit.String())
		}
	}
	if limit := u.Limits.Pod; limit != nil && over(u.Taken.Ephemeral().Bytes, *limit) {
		return signalPod, fmt.Sprintf(messagePod, limit.String())
	}
	for i := range u.Pod.Spec.Containers {
		name := u.Pod.Spec.Containers[i].Name
		if limit, ok := u.Limits.Containers[name]; ok && over(u.container(name), limit) {
			return signalContainer, fmt.Sprintf(messageContainer, name, limit.String())
		}
	}
	return "", ""
}
