package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
)

const (
	requestTime = 30 * time.Second // for what one driver needs of the API server
	firstPause  = time.Second      // after a failure, and twice that after each further one
	lastPause   = time.Minute
)

// publication is what of one driver was published, or why not. The empty name is the CSINode itself.
type publication struct {
	node  types.UID // on whose objects
	done  *info     // nil: nothing, or removed
	tried *info     // with the last failure; nil: removal
	next  time.Time // not before; zero: there was no failure
	pause time.Duration
	said  string
}

// publisher is the state of Run.
type publisher struct {
	*Registry
	published map[string]*publication
	refreshed map[string]time.Time // by driver, when a refresh began
	running   sync.WaitGroup
}

// Run publishes until ctx ends. Nothing is taken back then: a kubelet that restarts finds its drivers again.
func (r *Registry) Run(ctx context.Context) error {
	p := &publisher{Registry: r, published: map[string]*publication{}, refreshed: map[string]time.Time{}}
	defer p.running.Wait()
	if err := r.parts.Objects.OnCSIDrivers(r.changed.Send); err != nil {
		return fmt.Errorf("cannot watch CSIDrivers: %w", err)
	}
	for {
		p.publishAll(ctx)
		p.refreshDue(ctx)
		var again <-chan time.Time
		if due := p.due(); !due.IsZero() {
			again = r.parts.Clock.After(max(0, due.Sub(r.parts.Clock.Now())))
			if !r.parts.Clock.Now().Before(due) { // the clock has jumped since, or this host was suspended
				continue
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		case <-again:
		}
	}
}

// publishAll publishes each driver that is not published as it is, and takes back those that are gone. A driver that cannot be published holds up no
// other.
func (p *publisher) publishAll(ctx context.Context) {
	p.mu.Lock()
	node := p.node
	p.mu.Unlock()
	if node == nil || ctx.Err() != nil {
		return
	}
	wanted := p.wanted()
	names := map[string]bool{"": true}
	for name := range wanted {
		names[name] = true
	}
	for name := range p.published {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var want *info
		if w, ok := wanted[name]; ok {
			want = &w
		}
		p.publishOne(ctx, node, name, want)
	}
}

func (p *publisher) publishOne(ctx context.Context, node *v1.Node, name string, want *info) {
	state := p.published[name]
	if state == nil {
		state = &publication{}
		p.published[name] = state
	}
	switch {
	case state.node == node.UID && state.next.IsZero() && same(state.done, want):
		return
	case state.node == node.UID && p.parts.Clock.Now().Before(state.next) && same(state.tried, want):
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	err := p.write(ctx, node, name, want)
	if state.node != node.UID || !same(state.tried, want) {
		state.pause = 0
	}
	state.node, state.tried = node.UID, want
	if err == nil {
		state.done, state.next, state.pause, state.said = want, time.Time{}, 0, ""
		if want != nil {
			klog.InfoS("Published a CSI driver", "driver", name, "nodeID", want.nodeID, "topology", want.topology, "volumes", want.most)
		} else if name != "" {
			delete(p.published, name)
		}
		return
	}
	state.pause = max(firstPause, min(2*state.pause, lastPause))
	state.next = p.parts.Clock.Now().Add(state.pause)
	p.failed(state, name, err)
}

// same says whether two values are the same, both nil included.
func same(a, b *info) bool {
	return (a == nil) == (b == nil) && (a == nil || a.equal(*b))
}

// failed logs an error once, and sends it as an Event where the cause is not the way to the API server.
func (p *publisher) failed(state *publication, name string, err error) {
	if state.said == err.Error() || errors.Is(err, context.Canceled) {
		return
	}
	state.said = err.Error()
	klog.ErrorS(err, "Cannot publish the node's CSI drivers; trying again", "driver", name)
	var answered apierrors.APIStatus
	if name != "" && (errors.As(err, &answered) || errors.As(err, new(collisionError))) {
		p.parts.Events.NodeEvent(v1.EventTypeWarning, "CSIDriverNotPublished", "CSI driver "+name+" is not in the Node's CSINode: "+err.Error())
	}
}

// due is when there is something to do even if nothing changes; zero: never.
func (p *publisher) due() time.Time {
	var first time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	for _, state := range p.published {
		earlier(state.next)
	}
	for _, t := range p.refreshes() {
		earlier(t)
	}
	return first
}

// write brings Node and CSINode to what a driver says, or takes it back where want is nil. The Node comes first and goes last, as upstream has it.
func (p *publisher) write(ctx context.Context, node *v1.Node, name string, want *info) error {
	if want != nil {
		if err := p.writeNode(ctx, node, name, want); err != nil {
			return err
		}
	}
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return p.writeCSINode(ctx, node, name, want) }); err != nil {
		return err
	}
	if want == nil && name != "" {
		return p.writeNode(ctx, node, name, nil)
	}
	return nil
}

func (p *publisher) writeNode(ctx context.Context, node *v1.Node, name string, want *info) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		have, err := p.parts.Client.Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && want == nil {
			return nil
		}
		if err != nil {
			return err
		}
		patch, err := nodePatch(have, name, want)
		if err != nil || patch == nil {
			return err
		}
		_, err = p.parts.Client.Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// writeCSINode makes the CSINode where it is missing or another node's, and updates it.
func (p *publisher) writeCSINode(ctx context.Context, node *v1.Node, name string, want *info) error {
	objects := p.parts.Client.CSINodes()
	have, err := objects.Get(ctx, node.Name, metav1.GetOptions{})
	if err == nil && !owns(node, have) {
		klog.InfoS("Replacing the CSINode of a node that had this name before", "node", node.Name)
		err = objects.Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))})
		if err == nil || apierrors.IsNotFound(err) {
			err = apierrors.NewNotFound(storage.Resource("csinodes"), node.Name)
		}
	}
	if apierrors.IsNotFound(err) {
		have, err = objects.Create(ctx, newCSINode(node), metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	var steps []*storage.CSINode
	if name != "" {
		steps = csiNodes(have, name, want)
	} else if next := have.DeepCopy(); annotate(next) {
		steps = []*storage.CSINode{next}
	}
	for _, next := range steps {
		next.ResourceVersion = have.ResourceVersion
		if have, err = objects.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
