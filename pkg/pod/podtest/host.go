package podtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// Disk is pod.Volumes: directories of pods by UID.
type Disk struct {
	Log *Log

	mu       sync.Mutex
	dirs     map[types.UID]bool
	prepared map[types.UID]int
	failures int
}

// NewDisk returns an empty Disk.
func NewDisk(log *Log) *Disk {
	return &Disk{Log: log, dirs: map[types.UID]bool{}, prepared: map[types.UID]int{}}
}

// Prepare implements pod.Volumes.
func (d *Disk) Prepare(ctx context.Context, p *v1.Pod) (map[string]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failures > 0 {
		d.failures--
		return nil, errors.New(`MountVolume.SetUp failed for volume "data" : no`)
	}
	d.dirs[p.UID] = true
	d.prepared[p.UID]++
	paths := map[string]string{}
	for _, v := range p.Spec.Volumes {
		paths[v.Name] = "/pods/" + string(p.UID) + "/" + v.Name
	}
	return paths, ctx.Err()
}

// Mounts implements pod.Volumes.
func (d *Disk) Mounts(context.Context, *v1.Pod, *v1.Container, []pod.Env) ([]pod.Mount, error) {
	return nil, nil
}

// Devices implements pod.Volumes.
func (d *Disk) Devices(*v1.Pod, *v1.Container) ([]pod.Device, error) { return nil, nil }

// WriteFile implements pod.Volumes.
func (d *Disk) WriteFile(uid types.UID, name string, data []byte, mode uint32) (string, error) {
	return "/pods/" + string(uid) + "/" + name, nil
}

// MakeDir implements pod.Volumes.
func (d *Disk) MakeDir(uid types.UID, name string) (string, error) {
	return "/pods/" + string(uid) + "/" + name, nil
}

// KeepFiles implements pod.Volumes.
func (d *Disk) KeepFiles(types.UID, string, ...string) error { return nil }

// Clean implements pod.Volumes.
func (d *Disk) Clean(ctx context.Context, uid types.UID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failures > 0 {
		d.failures--
		return errors.New("cannot remove the pod's directory: busy")
	}
	if d.dirs[uid] {
		d.Log.Printf("disk: clean %s", uid)
	}
	delete(d.dirs, uid)
	return nil
}

// Leftovers implements pod.Volumes.
func (d *Disk) Leftovers() ([]types.UID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var uids []types.UID
	for uid := range d.dirs {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids, nil
}

// Prepared counts how often a pod's volumes were prepared.
func (d *Disk) Prepared(uid types.UID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.prepared[uid]
}

// Put creates a directory, as an earlier agent may have left it.
func (d *Disk) Put(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dirs[uid] = true
}

// Fail makes the next n calls fail.
func (d *Disk) Fail(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures = n
}

// String lists the directories.
func (d *Disk) String() string {
	uids, _ := d.Leftovers()
	return fmt.Sprintln("directories:", uids)
}

// Network is pod.Network with one network.
type Network struct{}

// Join implements pod.Network.
func (Network) Join(*v1.Pod) (string, error) { return "pods", nil }

// Images is pod.Images: every image is present unless its name begins with "missing".
type Images struct{}

// Lookup implements pod.Images.
func (Images) Lookup(ctx context.Context, name string) (pod.Image, bool, error) {
	if strings.HasPrefix(name, "missing") {
		return pod.Image{}, false, nil
	}
	return pod.Image{ID: "sha256:" + name, Ref: "docker://sha256:" + name}, true, ctx.Err()
}

// Pull implements pod.Images.
func (i Images) Pull(ctx context.Context, name string, creds []pod.Credential) (pod.Image, int, error) {
	if img, ok, err := i.Lookup(ctx, name); ok || err != nil {
		return img, -1, err
	}
	return pod.Image{}, -1, fmt.Errorf("manifest for %s not found", name)
}

// Admitter is pod.Admitter: it admits at most Max pods (0: any number) and logs who comes and goes. A pod with system priority preempts the
// pod with the first UID.
type Admitter struct {
	Log    *Log
	Max    int
	MaxCPU atomic.Int64 // may change at any time
	// Ask returns the question to ask before the named pod is admitted; nil: none.
	Ask   func(name string) pod.Question
	in    map[types.UID]bool // false: it was asked to end
	asked map[types.UID]bool
}

// Admit implements pod.Admitter.
func (a *Admitter) Admit(p *v1.Pod) *pod.Rejection {
	if a.Ask != nil && !a.asked[p.UID] {
		if ask := a.Ask(p.Name); ask != nil {
			if a.asked == nil {
				a.asked = map[types.UID]bool{}
			}
			a.asked[p.UID] = true
			return &pod.Rejection{Reason: "NodeAffinity", Ask: &ask}
		}
	}
	if a.in == nil {
		a.in = map[types.UID]bool{}
	}
	delete(a.in, p.UID)
	var no *pod.Rejection
	if a.Max > 0 && len(a.in) >= a.Max {
		no = &pod.Rejection{Reason: "OutOfpods", Message: "Node didn't have enough resource: pods"}
		if p.Spec.Priority == nil || *p.Spec.Priority < 2_000_000_000 {
			return no
		}
		no.Preemption = a.preempt(p.Name)
	}
	a.in[p.UID] = true
	return no
}

// preempt makes one more pod end, unless enough pods are already ending.
func (a *Admitter) preempt(name string) *pod.Preemption {
	staying := len(a.in)
	for _, stays := range a.in {
		if !stays {
			staying--
		}
	}
	p := &pod.Preemption{}
	for _, uid := range slices.Sorted(maps.Keys(a.in)) {
		if staying >= a.Max && a.in[uid] {
			a.Log.Printf("admit: %s preempts %s", name, uid)
			a.in[uid] = false
			staying--
			p.Victims = append(p.Victims, uid)
		}
	}
	return p
}

// Adopt implements pod.Admitter.
func (a *Admitter) Adopt(p *v1.Pod) {
	a.Log.Printf("admit: adopt %s", p.Name)
	if a.in == nil {
		a.in = map[types.UID]bool{}
	}
	a.in[p.UID] = true
}

// Resize implements pod.Admitter: it defers a pod if one of its containers requests more than MaxCPU thousandths of a CPU (0: no limit).
func (a *Admitter) Resize(p *v1.Pod) *pod.Rejection {
	for _, c := range p.Spec.Containers {
		if milli, most := c.Resources.Requests.Cpu().MilliValue(), a.MaxCPU.Load(); most > 0 && milli > most {
			return &pod.Rejection{Reason: v1.PodReasonDeferred, Message: "Node didn't have enough resource: cpu"}
		}
	}
	return nil
}

// Release implements pod.Admitter.
func (a *Admitter) Release(uid types.UID) { delete(a.in, uid) }

// Events is a record.EventRecorder that writes into a Log.
type Events struct{ Log *Log }

// Event implements record.EventRecorder.
func (e *Events) Event(object runtime.Object, kind, reason, message string) {
	where := ""
	if ref, ok := object.(*v1.ObjectReference); ok {
		where = ref.Name
		if _, container, ok := strings.Cut(ref.FieldPath, "{"); ok {
			where += "/" + strings.TrimSuffix(container, "}")
		}
	}
	e.Log.Printf("event: %s %s %s: %s", where, kind, reason, message)
}

// Eventf implements record.EventRecorder.
func (e *Events) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	e.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf implements record.EventRecorder.
func (e *Events) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	e.Event(object, kind, reason, fmt.Sprintf(format, args...))
}
