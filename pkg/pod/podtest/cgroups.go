package podtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/podspec"
)

// Cgroups is pod.Cgroups: cgroups of pods by UID. As in a kernel, a container cannot have more than its pod, and a cgroup with processes
// cannot be removed.
type Cgroups struct {
	Log *Log

	mu     sync.Mutex
	engine *Engine
	limits map[types.UID]podspec.Resources
	kills  map[types.UID]uint64 // for lack of memory
}

// NewCgroups returns an empty Cgroups. From now on, engine enforces it.
func NewCgroups(log *Log, engine *Engine) *Cgroups {
	c := &Cgroups{Log: log, engine: engine, limits: map[types.UID]podspec.Resources{}, kills: map[types.UID]uint64{}}
	engine.cgroups = c
	return c
}

// Parent implements pod.Cgroups.
func (c *Cgroups) Parent(p *v1.Pod) string { return "/pod" + string(p.UID) }

// Limit implements pod.Cgroups.
func (c *Cgroups) Limit(ctx context.Context, p *v1.Pod, r podspec.Resources) error {
	for _, box := range c.engine.running(p.UID) {
		if box.Resources != nil && exceeds(*box.Resources, r) {
			return fmt.Errorf("cannot limit the pod to %s: container %s has %s", r, box.ID, box.Resources)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, exists := c.limits[p.UID]; exists && old != r {
		c.Log.Printf("cgroup: %s from %s to %s", p.Name, old, r)
	}
	c.limits[p.UID] = r
	return ctx.Err()
}

// exceeds reports whether a has a limit above that of b.
func exceeds(a, b podspec.Resources) bool {
	return b.Quota > 0 && a.Quota > b.Quota
}

// Limits implements pod.Cgroups.
func (c *Cgroups) Limits(p *v1.Pod) (*podspec.Resources, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.limits[p.UID]; ok {
		return &r, nil
	}
	return nil, nil
}

// MemoryKills implements pod.Cgroups.
func (c *Cgroups) MemoryKills(p *v1.Pod) (kills uint64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known = c.limits[p.UID]
	return c.kills[p.UID], known
}

func (c *Cgroups) killed(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kills[uid]++
}

// End implements pod.Cgroups.
func (c *Cgroups) End(_ context.Context, _ *v1.Pod, id string) error {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	if c.engine.orphans[id] {
		delete(c.engine.orphans, id)
		c.Log.Printf("cgroup: ended what ran in %s", id)
	}
	return nil
}

// Remove implements pod.Cgroups.
func (c *Cgroups) Remove(_ context.Context, uid types.UID) error {
	if len(c.engine.running(uid)) > 0 {
		return errors.New("cannot remove the pod's cgroup: busy")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.limits, uid)
	delete(c.kills, uid)
	return nil
}

// Leftovers implements pod.Cgroups.
func (c *Cgroups) Leftovers() ([]types.UID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.limits)), nil
}

// Put creates a cgroup, as an earlier agent may have left it.
func (c *Cgroups) Put(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits[uid] = podspec.Resources{}
}

// Drop removes a cgroup, as if an agent without cgroups had started its pod.
func (c *Cgroups) Drop(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.limits, uid)
}

// String lists the cgroups.
func (c *Cgroups) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	for _, uid := range slices.Sorted(maps.Keys(c.limits)) {
		text += fmt.Sprintf("pod%s %s\n", uid, c.limits[uid])
	}
	return text + fmt.Sprintf("%d cgroups\n", len(c.limits))
}

// admits says why a container with r cannot run in the cgroup parent of the pod; "" if it can.
func (c *Cgroups) admits(uid types.UID, parent string, r *podspec.Resources) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, exists := c.limits[uid]
	switch {
	case parent != "/pod"+string(uid):
		return fmt.Sprintf("the pod's cgroup is /pod%s, not %q", uid, parent)
	case !exists:
		return "the pod has no cgroup"
	case r != nil && exceeds(*r, all):
		return fmt.Sprintf("%s is more than the pod's %s", r, all)
	}
	return ""
}
