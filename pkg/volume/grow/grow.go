// Package grow has this node follow claims that have grown: a driver expands what the node has of a volume, and Events and the claim's status say so,
// as with upstream's kubelet.
//
//	claim, PersistentVolume --growth--> size --Volume.Expand--> driver --> Events, status of the claim
package grow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/volume"
)

// Objects are what is read from the API server, and the one write.
type Objects interface {
	volume.Claims
	// PatchClaimStatus applies a JSON merge patch to the status of a claim, and returns the claim after it.
	PatchClaimStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.PersistentVolumeClaim, error)
}

// Events reports what users watch.
type Events interface {
	PodEvent(namespace, name, uid, kind, reason, message string)
	ClaimEvent(namespace, name, uid, kind, reason, message string)
}

// Parts are what a Growth works with. All must be set.
type Parts struct {
	NodeName string
	Objects  Objects
	Events   Events
	Clock    clock.PassiveClock
	// Limit covers reading the claim, waiting for the volume's turn, and the driver's call.
	Limit time.Duration
}

// Growth is that of the volumes of one kind. K names a volume on this node.
type Growth[K comparable] struct {
	Parts
	sizes sizes[K]

	mu   sync.Mutex
	busy map[string]bool // by Volume.Target
	crew sync.WaitGroup
}

// Volume is a volume of a pod that may grow.
type Volume[K comparable] struct {
	volume.Volume
	Key    K
	Spec   string // its name in Events
	Driver string
	Target string // where the pod has it
	// Expand has the driver expand the volume. It returns ErrNothing when there is nothing to expand, a *Failure when the driver could not, and any other
	// error when the driver was not called.
	Expand func(ctx context.Context, step Step) error
}

// Step is one expansion.
type Step struct {
	PV       *v1.PersistentVolume
	From, To resource.Quantity
	// Begin must be called before the driver is, and succeed: users see that the node has begun.
	Begin func(context.Context) error
}

// ErrNothing says that there is nothing to expand: the pod has ended, the PersistentVolume is another volume, or the driver need not do anything.
var ErrNothing = errors.New("there is nothing to expand")

// Failure is the answer of a driver that could not expand a volume.
type Failure struct {
	Err        error
	Final      bool // the driver does not continue
	Infeasible bool // another attempt at the same size must fail, too
	Quiet      bool // the driver only expands volumes that are not in use: no Event
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Soon has v expanded if its claim has grown. The pod waits neither for that nor for the API server. Each Prepare calls it, so once per
// --sync-frequency (60 s) for a running pod.
func (g *Growth[K]) Soon(v Volume[K]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy[v.Target] {
		return
	}
	if g.busy == nil {
		g.busy = map[string]bool{}
	}
	g.busy[v.Target] = true
	known := g.sizes.get(v.Key) // now, because the pod may end before its claim has been read
	g.crew.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), g.Limit)
		defer cancel()
		if err := g.grow(ctx, v, known); err != nil {
			klog.ErrorS(err, "Cannot expand a volume on this node; trying again", "pod", klog.KObj(v.Pod), "volume", v.Volume.Spec.Name, "driver", v.Driver)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.busy, v.Target)
	})
}

// End forgets the size of a volume that no pod has any more.
func (g *Growth[K]) End(k K) { g.sizes.end(k) }

// Wait waits until no volume is being expanded.
func (g *Growth[K]) Wait() { g.crew.Wait() }

func (g *Growth[K]) grow(ctx context.Context, v Volume[K], known *nodeSize) error {
	claim, err := g.Objects.Claim(ctx, v.Pod.Namespace, v.Claim)
	if err != nil {
		return err
	}
	has := *claim.Status.Capacity.Storage()
	here := known.here(has)
	grown := has.Cmp(here) > 0 // another node has done so, and its kubelet has said it for all
	if !mayGrow(claim) && !grown {
		return nil
	}
	pv, err := g.Objects.PersistentVolume(ctx, v.PV.Name)
	if err != nil {
		return err
	}
	size, due := growth(claim, pv)
	due = due && mayGrow(claim) // otherwise this node only follows the other one
	switch {
	case !due && !grown:
		return nil
	case !due:
		size = has
	}
	if v.ReadOnly {
		if known.refused(size) {
			const message = "MountVolume.NodeExpandVolume failed for volume %q requested read-only file system"
			g.say(v, claim, v1.EventTypeWarning, "FileSystemResizeFailed", fmt.Sprintf(message, v.Spec))
		}
		return nil
	}
	begin := func(ctx context.Context) (err error) {
		if due {
			claim, err = g.begun(ctx, claim)
		}
		return err
	}
	err = v.Expand(ctx, Step{pv, here, size, begin})
	if errors.Is(err, ErrNothing) {
		return nil
	}
	if f := (*Failure)(nil); errors.As(err, &f) {
		again := known.failed(size, f)
		return g.failed(ctx, v, claim, f, due, due && again)
	}
	if err != nil {
		return err
	}
	known.set(size)
	message := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", v.Spec, g.NodeName)
	g.say(v, claim, v1.EventTypeNormal, "FileSystemResizeSuccessful", message)
	if !due {
		return nil
	}
	patch, err := grownPatch(claim, size)
	if err != nil {
		return err
	}
	_, err = g.Objects.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch)
	return err
}

// begun says in the claim's status that this node expands the volume, and returns the claim with that.
func (g *Growth[K]) begun(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	if claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizePending {
		return claim, nil
	}
	patch, err := growingPatch(claim)
	if err == nil {
		var now *v1.PersistentVolumeClaim
		if now, err = g.Objects.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch); err == nil {
			return now, nil
		}
	}
	return claim, fmt.Errorf("cannot say that the volume is being expanded: %w", err)
}

// say reports an Event on the pod and on the claim.
func (g *Growth[K]) say(v Volume[K], claim *v1.PersistentVolumeClaim, kind, reason, message string) {
	g.Events.PodEvent(v.Pod.Namespace, v.Pod.Name, string(v.Pod.UID), kind, reason, message)
	g.Events.ClaimEvent(claim.Namespace, claim.Name, string(claim.UID), kind, reason, message)
}

// failed reports that the driver could not expand the volume, and returns the error. due: this node is the one that writes the claim's status.
// again: the same size has failed here before.
func (g *Growth[K]) failed(ctx context.Context, v Volume[K], claim *v1.PersistentVolumeClaim, f *Failure, due, again bool) error {
	if !f.Quiet {
		message := fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", v.Spec, f)
		g.Events.PodEvent(v.Pod.Namespace, v.Pod.Name, string(v.Pod.UID), v1.EventTypeWarning, "VolumeResizeFailed", message)
	}
	if !due || !f.Final {
		return f
	}
	patch, wrong := notGrownPatch(claim, f, f.Infeasible || again && shrunk(claim), g.Clock.Now())
	if wrong == nil && patch != nil {
		_, wrong = g.Objects.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch)
	}
	return errors.Join(f, wrong)
}
