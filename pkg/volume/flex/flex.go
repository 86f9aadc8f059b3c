// Package flex is the kind of volume of flexVolume drivers: vendors' programs in a directory of the host, which mount and unmount.
//
//	pod, PersistentVolume --describe--> described --mountOptions--> JSON --driver.call--> mount
//	disk --tree.uses--> use --driver.call--> unmount
//
// What lies on disk is upstream's layout. The directory of a volume in its pod is the record that the driver may have mounted it.
package flex

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/grow"
	"github.com/winkube/winkube/pkg/volume/inuse"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/turns"
	"github.com/winkube/winkube/pkg/wake"
)

const pluginName = "kubernetes.io/flexvolume"

// Objects are what this kind reads from the API server.
type Objects interface {
	grow.Objects
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// NodeState returns our Node as last seen, nil before that, and a channel that is closed at its next change.
	NodeState() (*v1.Node, <-chan struct{})
}

// Parts are what the kind works with. All must be set.
type Parts struct {
	NodeName string
	Dir      string // with a directory per driver (volumePluginDir)
	Run      command.Runner
	Objects  Objects
	Events   grow.Events
	Clock    clock.PassiveClock
	// Changed is sent when InUse has changed, and has the Node's status compared.
	Changed wake.Signal
}

const (
	// callWait is how long a pod waits for its driver. Then it gets an error.
	callWait = 2 * time.Minute
	// callTime is how long a driver may take: it may make a file system.
	callTime = 10 * time.Minute
)

// Kind is the kind of volume that flexVolume drivers make. It implements volume.DirKind.
type Kind struct {
	host    volume.Host
	parts   Parts
	tree    tree
	turns   turns.Turns[string] // by use.key
	drivers drivers
	inUse   inuse.Volumes[name]
	again   wake.Signal // Run looks for volumes that no pod uses
	spots   spots
	devices sync.Map // name to string: what waitforattach has answered since the agent started
	growth  grow.Growth[name]
	crew    sync.WaitGroup // what learn has begun
}

var _ volume.DirKind = (*Kind)(nil)

// New returns the kind for a host, with the volumes that drivers have mounted there.
func New(host volume.Host, parts Parts) *Kind {
	k := &Kind{host: host, parts: parts, tree: tree(host.Root), again: wake.New(), spots: spots{host: host, put: map[string]bool{}}}
	k.inUse.Changed = parts.Changed
	k.growth.Parts = grow.Parts{NodeName: parts.NodeName, Objects: parts.Objects, Events: parts.Events, Clock: parts.Clock, Limit: growTime}
	k.turns.Wait, k.turns.Limit = callWait, callTime
	k.drivers = drivers{dir: parts.Dir, platform: host.Platform, run: parts.Run, turns: &k.turns}
	devices, err := k.tree.devices(host.Platform)
	if err != nil {
		klog.ErrorS(err, "Cannot read which flexVolumes are attached; leaving those volumes as they are")
	}
	for _, u := range devices {
		k.inUse.Add(u.name(), "")
	}
	return k
}

// Name implements volume.Kind.
func (*Kind) Name() string { return pluginName }

// Has implements volume.Kind.
func (*Kind) Has(v volume.Volume) bool {
	if v.PV != nil {
		return v.PV.Spec.FlexVolume != nil
	}
	return v.Spec.FlexVolume != nil
}

// HasDir implements volume.DirKind: volumes lie in directories named after their drivers.
func (k *Kind) HasDir(name string) bool { return checkName(k.host.Platform, unescape(name)) == nil }

// Mount implements volume.Kind.
func (k *Kind) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	d, err := describe(k.host.Platform, v)
	return volume.Mount{Path: k.tree.target(use{v.Pod.UID, d.driver, d.spec}), ReadOnly: d.readOnly, Linked: true}, err
}

// Usage implements volume.Kind: a driver says whether its volumes have figures.
func (k *Kind) Usage(v volume.Volume) (disk.Place, bool, error) {
	d, err := describe(k.host.Platform, v)
	if err != nil {
		return disk.Place{}, false, err
	}
	known := k.drivers.recall(d.driver)
	if known == nil || !known.caps.SupportsMetrics {
		return disk.Place{}, false, nil
	}
	return disk.Place{Path: k.tree.target(use{v.Pod.UID, d.driver, d.spec}), Own: true}, true, nil
}

// ready reports whether v was made for the pod and is still there. A driver that mounts nothing is trusted until this agent ends.
func (k *Kind) ready(v volume.Volume, target string) (bool, error) {
	made, err := v.Made()
	if err != nil || !made {
		return false, err
	}
	return k.spots.placed(target)
}

// Prepare implements volume.Kind. The volume of a running pod needs neither driver nor API server.
func (k *Kind) Prepare(ctx context.Context, v volume.Volume) (string, error) {
	d, err := describe(k.host.Platform, v)
	if err != nil {
		return "", err
	}
	u := use{v.Pod.UID, d.driver, d.spec}
	target := k.tree.target(u)
	if ready, err := k.ready(v, target); err != nil || ready {
		k.learn(ctx, d.driver)
		if err == nil {
			k.growSoon(v, d)
		}
		return target, err
	}
	driver, err := k.drivers.find(ctx, d.driver)
	if err != nil {
		return "", err
	}
	secret, err := k.secret(ctx, d)
	if err != nil {
		return "", err
	}
	device := ""
	if driver.caps.Attach {
		if device, err = k.attached(ctx, u); err != nil {
			return "", fmt.Errorf("flexVolume driver %s: %w", d.driver, err)
		}
	}
	// The directory is made before the turn, so that Clean waits for a call that this pod has given up.
	there, err := k.spots.there(target)
	if err == nil && !there { // a look at what is mounted may hang
		err = os.MkdirAll(target, paths.DirMode)
	}
	if err != nil {
		return "", fmt.Errorf("cannot make the directory of the volume: %w", err)
	}
	options := d.mountOptions(v.Pod, k.host.Access.FSGroup(v.Pod), secret)
	err = k.turns.Do(ctx, u.key(), func(ctx context.Context) error { return k.mount(ctx, driver, v, d, device, options) })
	if err != nil {
		return "", fmt.Errorf("flexVolume driver %s: %w", d.driver, err)
	}
	k.growSoon(v, d)
	return target, nil
}

// learn asks the driver of an earlier agent's volume for its capabilities, which Usage needs, and does not wait for the answer.
func (k *Kind) learn(ctx context.Context, driver string) {
	if k.drivers.recall(driver) != nil {
		return
	}
	k.crew.Go(func() {
		if _, err := k.drivers.find(context.WithoutCancel(ctx), driver); err != nil {
			klog.V(2).InfoS("Cannot query the capabilities of a flexVolume driver; its volumes have no figures", "driver", driver, "err", err)
		}
	})
}

// mount makes the driver mount v. The caller has the turn.
func (k *Kind) mount(ctx context.Context, driver *driver, v volume.Volume, d described, device string, options *callOptions) error {
	u := use{v.Pod.UID, d.driver, d.spec}
	target := k.tree.target(u)
	there, err := k.spots.there(target)
	if err != nil {
		return err
	}
	if !there {
		if driver.caps.Attach {
			err = k.mountDevice(ctx, driver, u, device, d.plainOptions())
		}
		if err == nil {
			err = k.mountFor(ctx, driver, u, options)
		}
		if err != nil {
			_ = os.Remove(target) // nothing is recorded of what was not mounted; a driver that has left files there, or a mount, keeps it
			return err
		}
	}
	if !d.readOnly && driver.caps.FSGroup {
		// Upstream ignores this error: files of a share may have no owners here.
		if err := k.host.Access.SetGroup(target, v.Pod.Spec.SecurityContext, false); err != nil {
			klog.ErrorS(err, "Cannot give a flexVolume to the pod's fsGroup; the pod gets it as it is", "pod", klog.KObj(v.Pod), "volume", v.Spec.Name, "driver", d.driver)
		}
	}
	if err := k.spots.place(target); err != nil {
		return err
	}
	return v.SetMade()
}

// mountFor makes the driver mount a volume for the pod.
func (k *Kind) mountFor(ctx context.Context, driver *driver, u use, options *callOptions) error {
	target := k.tree.target(u)
	_, err := driver.call(ctx, "mount", options, target)
	switch {
	case !errors.Is(err, errNotSupported):
		return err
	case driver.caps.Attach && k.host.Platform.OS != "windows":
		return k.bind(u, target)
	}
	return errors.New(`mount command failed: the driver answered "Not supported"; want a driver that mounts for pods`)
}

// Clean implements volume.Kind. Volumes of different drivers do not wait for each other.
func (k *Kind) Clean(ctx context.Context, left volume.Remains) error {
	uses, err := k.tree.uses(k.host.Platform, left.UID)
	errs := make([]error, len(uses)+1)
	errs[len(uses)] = err
	var all sync.WaitGroup
	for i, u := range uses {
		all.Go(func() { errs[i] = k.release(ctx, u) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	k.releaseDevices(ctx, left.UID, uses)
	k.endGrowth(left.UID, uses)
	return nil
}

// release makes the driver unmount one volume of a pod.
func (k *Kind) release(ctx context.Context, u use) error {
	target := k.tree.target(u)
	driver, err := k.drivers.find(ctx, u.driver)
	if err != nil {
		there, wrong := k.spots.there(target)
		if wrong == nil && !there && os.Remove(target) == nil {
			return nil // an empty directory: the driver has never mounted anything
		}
		return errors.Join(fmt.Errorf("%w; volume %s stays until the driver is back", err, u.spec), wrong)
	}
	err = k.turns.Do(ctx, u.key(), func(ctx context.Context) error { return k.unmount(ctx, driver, target) })
	if err != nil {
		return fmt.Errorf("flexVolume driver %s: volume %s: %w", u.driver, u.spec, err)
	}
	return nil
}

// unmount makes the driver unmount what is at target. The caller has the turn.
func (k *Kind) unmount(ctx context.Context, driver *driver, target string) error {
	if _, err := driver.call(ctx, "unmount", nil, target); err != nil && !errors.Is(err, errNotSupported) {
		return err
	}
	if err := k.spots.unmountAll(driver.name, target); err != nil {
		return err
	}
	// Now, so that the driver is not called again. Files that it has left go with the pod's directory.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.V(2).InfoS("A flexVolume driver has left files", "driver", driver.name, "path", target, "err", strings.ToValidUTF8(err.Error(), "?"))
	}
	return nil
}
