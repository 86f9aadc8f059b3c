// Package drivers knows the CSI drivers of this node: it connects to each that registers, asks what it is and what it can, and publishes that on the
// Node and its CSINode for the scheduler and the attacher.
//
//	plugins.Watcher -> Registry.Register -> csi.Drivers (pods' volumes)
//	                                     -> Run: Node (node ids, topology labels), CSINode (drivers, limits) <- CSIDriver (period)
//
// A driver is usable here before it is published, and where it cannot be published.
package drivers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/plugins"
	"github.com/winkube/winkube/pkg/wake"
)

// Parts is what a Registry uses.
type Parts struct {
	Client clientset.Interface
	// Objects are the CSIDrivers (kubeclient.CSIObjects), which have the periods.
	Objects interface {
		// KnownCSIDriver is the object of that name as it is known now; nil: there is none, or nothing is known. The first call begins the watch.
		KnownCSIDriver(name string) *storage.CSIDriver
		// OnCSIDrivers has f called when one of them has changed.
		OnCSIDrivers(f func()) error
	}
	Events interface {
		NodeEvent(kind, reason, message string)
	}
	// Counted is called after each call to a driver, with its method as /csi.v1.Node/NodeStageVolume.
	Counted func(driver, method string, took time.Duration, err error, migrated bool)
	Clock   clock.WithTicker
	Wire    plugins.Wire // to the drivers; nil: plugins.Unix
	Joined  wake.Signal  // sent after a driver has registered
}

// Registry has the drivers that are registered now. It implements csi.Drivers and plugins.Handler. Make it with New.
type Registry struct {
	nodeName string
	parts    Parts
	changed  wake.Signal // what is to be published, or when

	mu     sync.Mutex
	byName map[string][]*driver // the newest last, which is the one that is used
	node   *v1.Node             // as last seen; nil: not known, or gone
}

var (
	_ csi.Drivers     = &Registry{}
	_ plugins.Handler = &Registry{}
)

// New makes a Registry without drivers.
func New(nodeName string, parts Parts) *Registry {
	return &Registry{nodeName: nodeName, parts: parts, changed: wake.New(), byName: map[string][]*driver{}}
}

// Driver implements csi.Drivers.
func (r *Registry) Driver(name string) (csi.Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.newest(name); d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// newest is the driver that is used of those with one name; nil: none. r.mu is held.
func (r *Registry) newest(name string) *driver {
	all := r.byName[name]
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// Names are the names of all registered drivers, sorted.
func (r *Registry) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.byName))
}

// Register implements plugins.Handler. Where two drivers have one name, the one that registered last is used, and the other again when that is gone.
func (r *Registry) Register(ctx context.Context, p plugins.Plugin) (func(), error) {
	if err := check(p); err != nil {
		return nil, err
	}
	d, err := connect(ctx, p, r.parts)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.node != nil {
		if _, err := missingLabels(r.node, d.info.topology); err != nil {
			d.close()
			return nil, err
		}
	}
	r.byName[p.Name] = append(r.byName[p.Name], d)
	r.changed.Send()
	r.parts.Joined.Send()
	return sync.OnceFunc(func() { r.release(d) }), nil
}

func (r *Registry) release(d *driver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := slices.DeleteFunc(r.byName[d.name], func(other *driver) bool { return other == d })
	if r.byName[d.name] = left; len(left) == 0 {
		delete(r.byName, d.name)
	}
	d.close()
	r.changed.Send()
}

// SetNode takes our Node as it was last seen; nil: it is gone.
func (r *Registry) SetNode(n *v1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.node; before == nil || n == nil || before.UID != n.UID {
		r.changed.Send()
	}
	r.node = n
}

// Refresh asks a driver again how many volumes it can have here, and publishes that. Its period and an attacher's error about exhausted
// resources are the reasons.
func (r *Registry) Refresh(ctx context.Context, name string) error {
	r.mu.Lock()
	d := r.newest(name)
	r.mu.Unlock()
	if d == nil {
		return fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
	}
	fresh, err := d.ask(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.info.most != fresh.most { // the API server lets nothing else of a driver change
		d.info.most = fresh.most
		r.changed.Send()
	}
	return nil
}

// wanted is what is to be published of each driver.
func (r *Registry) wanted() map[string]info {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]info{}
	for name := range r.byName {
		all[name] = r.newest(name).info
	}
	return all
}
