// Package san is the kinds of volume iscsi and fc on Linux: disks of a storage network, shared by the pods of this node.
//
//	pod, PersistentVolume --describe--> disk --+
//	sysfs, mount table, records --look--> seen -+--next------> step --work.do--> iscsiadm, SCSI scan, mkfs, mount
//	                                            +--nextDown--> step --work.do--> unmount, multipath, logout
//
// A disk is mounted once per node, and each pod gets that mount. Directories are upstream's. A record of each disk and of each use of it is on
// disk before anything is done, so that a killed agent finds all of it again.
package san

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/inuse"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/turns"
	"github.com/winkube/winkube/pkg/wake"
)

// Objects are what these kinds read from the API server.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// NodeState returns our Node as last seen, nil before that, and a channel that is closed at its next change.
	NodeState() (*v1.Node, <-chan struct{})
}

// Parts are what a kind works with. All must be set.
type Parts struct {
	Run     command.Runner
	Objects Objects
	System  System
	// Changed is sent when InUse has changed, and has the Node's status compared.
	Changed wake.Signal
}

const (
	// callWait is how long a pod waits for its disk. Then it gets an error, and the work goes on.
	callWait = 2 * time.Minute
	// callLimit is how long that work may take: it may make a file system, or wait for a target that does not answer.
	callLimit = 10 * time.Minute
	// attachWait is how long a pod waits until the control plane lists its volume as attached.
	attachWait = 2 * time.Minute
)

// protocol is what differs between iscsi and fc.
type protocol interface {
	// plugin is upstream's name of the kind.
	plugin() string
	// has says whether v is of this kind.
	has(v volume.Volume) bool
	// describe returns the disk of v. The error names the field that is wrong. It is pure.
	describe(v volume.Volume) (described, error)
	// adopt returns the disk that lies in a directory of upstream's layout, relative to the kind's.
	adopt(place string) (record, bool)
	// look finds the ways to a disk in sysfs, in the order of its description.
	look(d *record) ([]path, error)
	// announce notes in the record what connect will make for a way, so that it can be removed after a kill.
	announce(d *record, name string)
	// settle drops from the record what announce has noted and what is not there any more.
	settle(d *record)
	// connect makes the way usable. It is called for ways that have no session.
	connect(ctx context.Context, d *record, name string, in secrets) error
	// disconnect undoes connect. The way may not be there any more.
	disconnect(ctx context.Context, d *record, p path) error
	// forget removes what connect has made for a disk. shared says that other disks have the same sessions.
	forget(ctx context.Context, d *record, shared bool) error
	// save writes what upstream's kubelet wants to find in the disk's directory.
	save(d *record, dir string) error
	// load completes an adopted record by what upstream's kubelet has left in the disk's directory, which is not mounted.
	load(d *record, dir string)
}

// Kind is the kind of volume iscsi or fc. It implements volume.BlockKind.
type Kind struct {
	host     volume.Host
	parts    Parts
	protocol protocol
	tree     tree
	turns    turns.Turns[string] // by record.key, and by target
	inUse    inuse.Volumes[name]
	again    wake.Signal // Run looks for disks that no pod uses
	saving   sync.Mutex  // records are read and written under it

	attachWait time.Duration
}

// NodeKind is a Kind whose volumes the control plane attaches to this node.
type NodeKind interface {
	volume.BlockKind
	InUse() []v1.UniqueVolumeName
	Reported(node *v1.Node)
	Run(ctx context.Context) error
}

var _ NodeKind = (*Kind)(nil)

// NewISCSI returns the kind iscsi of a host, with the disks that lie on it.
func NewISCSI(host volume.Host, parts Parts) *Kind {
	k := &iscsi{run: parts.Run, system: parts.System}
	k.portals.Limit = callLimit
	return newKind(host, parts, k)
}

// NewFC returns the kind fc of a host, with the disks that lie on it.
func NewFC(host volume.Host, parts Parts) *Kind {
	return newKind(host, parts, &fc{system: parts.System})
}

func newKind(host volume.Host, parts Parts, p protocol) *Kind {
	k := &Kind{host: host, parts: parts, protocol: p, tree: newTree(host.Root, p.plugin()), again: wake.New(), attachWait: attachWait}
	k.turns.Wait, k.turns.Limit, k.inUse.Changed = callWait, callLimit, parts.Changed
	for _, dir := range append(slices.Clone(parts.System.Databases), join(k.tree.base, recordsDir)) { // in open-iscsi's, with secrets
		if err := removeUnfinished(dir); err != nil {
			klog.ErrorS(err, "Cannot remove what an earlier agent has left", "kind", p.plugin())
		}
	}
	if err := k.tree.adoptAll(p.adopt); err != nil {
		klog.ErrorS(err, "Cannot read which disks are mounted; leaving them as they are", "kind", p.plugin())
	}
	records, err := k.tree.records()
	if err != nil {
		klog.ErrorS(err, "Cannot read the records of all disks; leaving those as they are", "kind", p.plugin())
	}
	for _, r := range records {
		k.inUse.Add(k.unique(&r), "")
	}
	return k
}

// name is the control plane's name of a volume.
type name string

// Unique implements inuse.Key.
func (n name) Unique() v1.UniqueVolumeName { return v1.UniqueVolumeName(n) }

func (k *Kind) unique(r *record) name { return name(k.protocol.plugin() + "/" + r.Unique) }

// Name implements volume.Kind.
func (k *Kind) Name() string { return k.protocol.plugin() }

// Has implements volume.Kind.
func (k *Kind) Has(v volume.Volume) bool { return k.protocol.has(v) }

// Mount implements volume.Kind.
func (k *Kind) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	d, err := k.protocol.describe(v)
	return volume.Mount{Path: k.tree.target(use{uid: v.Pod.UID, spec: d.spec}), ReadOnly: d.record.ReadOnly}, err
}

// Device implements volume.BlockKind.
func (k *Kind) Device(v volume.Volume) (string, error) {
	d, err := k.protocol.describe(v)
	return k.tree.link(use{uid: v.Pod.UID, spec: d.spec}), err
}

// Usage implements volume.Kind. Devices count as nothing.
func (k *Kind) Usage(v volume.Volume) (disk.Place, bool, error) {
	d, err := k.protocol.describe(v)
	return disk.Place{Path: k.tree.target(use{uid: v.Pod.UID, spec: d.spec}), Own: true}, !d.record.Block, err
}

// Reported takes the state of our Node in the API server. Each call must have a newer state.
func (k *Kind) Reported(node *v1.Node) { k.inUse.Reported(node) }

// InUse returns the names for status.volumesInUse, never nil. A disk is in use until it is unmounted from the node.
func (k *Kind) InUse() []v1.UniqueVolumeName { return k.inUse.Names(func(name) bool { return true }) }

// Prepare implements volume.Kind. The mounted disk of a running pod needs neither its target nor the API server.
func (k *Kind) Prepare(ctx context.Context, v volume.Volume) (string, error) {
	d, err := k.protocol.describe(v)
	if err == nil {
		err = paths.CheckElement(k.host.Platform, d.spec)
	}
	if err != nil {
		return "", err
	}
	w := &work{kind: k, record: &d.record, use: use{uid: v.Pod.UID, spec: d.spec, key: d.record.key()}, volume: &v}
	at := k.tree.target(w.use)
	if d.record.Block {
		at = k.tree.link(w.use)
	}
	if ready, err := w.ready(); err != nil || ready {
		return at, err
	}
	if w.secrets, err = k.secrets(ctx, d); err != nil {
		return "", err
	}
	if err := k.attached(ctx, v.Pod.UID, &d.record); err != nil {
		return "", err
	}
	// Before the turn, so that the pod's end waits for work that Prepare has given up, and so that no one releases the disk meanwhile.
	if err := k.tree.writeUse(w.use); err != nil {
		return "", err
	}
	if err := k.turns.Do(ctx, w.use.key, w.bringUp); err != nil {
		return "", fmt.Errorf("%s: %w", d.record.Unique, err)
	}
	return at, nil
}

// attached waits until the control plane has attached the volume to this node, which for these kinds only means that it gives it to no other, and knows
// that it is in use.
func (k *Kind) attached(ctx context.Context, uid types.UID, r *record) error {
	k.inUse.Add(k.unique(r), uid)
	wait, cancel := context.WithTimeout(ctx, k.attachWait)
	defer cancel()
	_, err := k.inUse.Attached(wait, k.parts.Objects.NodeState, k.unique(r))
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("volume not attached according to node status for volume %q after %s; see the Events of kube-controller-manager on the pod", r.Unique, k.attachWait)
	}
	return err
}

// Clean implements volume.Kind. Disks do not wait for each other. The disk itself is released afterwards, by Run: a target that does not answer does not
// keep the pod.
func (k *Kind) Clean(ctx context.Context, left volume.Remains) error {
	uses, err := k.tree.usesOf(left.UID)
	errs := make([]error, len(uses)+1)
	errs[len(uses)] = err
	var all sync.WaitGroup
	for i, u := range uses {
		all.Go(func() {
			if err := k.turns.Do(ctx, u.key, func(context.Context) error { return k.endUse(u) }); err != nil {
				errs[i] = fmt.Errorf("volume %s: %w", u.spec, err)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	k.inUse.DropAll(left.UID)
	if len(uses) > 0 {
		k.again.Send()
	}
	return nil
}

// endUse undoes what was done for one volume of a pod. The caller has the turn.
func (k *Kind) endUse(u use) error {
	target := k.tree.target(u)
	points, err := k.host.Mounts.Below(target)
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(points) {
		if err := k.host.Mounts.Unmount(p); err != nil {
			return err
		}
	}
	if u.key != "" { // the disk stays in use until it is released
		if r, err := k.tree.record(u.key); err == nil {
			k.inUse.Add(k.unique(&r), "")
		}
	}
	for _, path := range []string{target, k.tree.link(u)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot remove the place of a volume: %w", err)
		}
	}
	return k.tree.forgetUse(u)
}

// Run releases disks that no pod uses, also those of earlier runs of the agent and of upstream's kubelet, until ctx ends.
func (k *Kind) Run(ctx context.Context) error {
	volume.Tidy(ctx, k.Name(), k.again, k.releaseAll)
	return nil
}

// releaseAll releases each disk that no pod uses. One that hangs delays no other.
func (k *Kind) releaseAll(ctx context.Context) error {
	records, err := k.tree.records()
	errs := make([]error, len(records)+1)
	errs[len(records)] = err
	var all sync.WaitGroup
	for i, r := range records {
		all.Go(func() {
			if err := k.turns.Do(ctx, r.key(), func(ctx context.Context) error { return k.release(ctx, r.key()) }); err != nil {
				errs[i] = fmt.Errorf("disk %s: %w", r.Unique, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// release releases one disk, unless a pod uses it. The caller has the turn.
func (k *Kind) release(ctx context.Context, key string) error {
	uses, err := k.tree.uses()
	if err != nil {
		return err
	}
	for _, u := range uses {
		if u.key == key {
			return nil
		}
		if u.key == "" {
			return fmt.Errorf("it may be that of volume %s of pod %s, which has no record of its disk; trying again when that pod has ended", u.spec, u.uid)
		}
	}
	r, err := k.tree.record(key)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := (&work{kind: k, record: &r}).takeDown(ctx); err != nil {
		return err
	}
	k.inUse.Drop(k.unique(&r), "")
	return nil
}

// join joins path elements of this host.
func join(elements ...string) string { return filepath.Join(elements...) }
