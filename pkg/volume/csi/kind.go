// Package csi is the kind of volume of CSI drivers: PersistentVolumes and inline volumes of kind csi, as file systems and block devices.
//
//	pod, PersistentVolume --describe--> described --+
//	CSIDriver object --rulesFor--> rules -----------+--bringUp--> steps --work.do--> NodeStage, NodePublish, records
//	disk, mount table --look--> seen ---------------+--takeDown-> steps --work.do--> NodeUnpublish, NodeUnstage
//
// What lies on disk is upstream's layout, so that a node can change between the two kubelets with its volumes mounted. A volume is staged once on
// a node, and unstaged when no pod's directory has a record of it any more.
package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/grow"
	"github.com/winkube/winkube/pkg/volume/inuse"
	"github.com/winkube/winkube/pkg/volume/links"
	"github.com/winkube/winkube/pkg/volume/turns"
	"github.com/winkube/winkube/pkg/wake"
)

const pluginName = "kubernetes.io/csi"

// Objects are what this kind reads from the API server.
type Objects interface {
	grow.Objects
	// CSIDriver returns the object of that name; nil: there is none. It waits a short time for the first list.
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	// KnownCSIDriver returns the object if it is known; nil: there is none, or nothing is known yet.
	KnownCSIDriver(name string) *storagev1.CSIDriver
	VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	// NodeState returns our Node as last seen, nil before that, and a channel that is closed at its next change.
	NodeState() (*v1.Node, <-chan struct{})
}

// Parts are what the kind works with. All must be set.
type Parts struct {
	NodeName string
	Drivers  csi.Drivers
	Objects  Objects
	Events   grow.Events
	// Refresh asks a driver again how many volumes this node can have, and publishes that.
	Refresh func(ctx context.Context, driver string) error
	// Boot changes when the host starts again. A volume that was published before is published again where that cannot be seen in its place: on
	// Windows, links survive, and what they lead to may not. "": it can be seen.
	Boot string
	// SELinux is the label of containers' files on a host that has SELinux; "": it has none. See selinux.Files.
	SELinux string
	// Again wakes Run; the registry of drivers sends it when one has registered, which may unstage what another one refused. nil: only the kind does.
	Again wake.Signal
	// Changed is sent when InUse has changed, and has the Node's status compared.
	Changed wake.Signal
	Clock   clock.PassiveClock
}

// Kind is the kind of volume that CSI drivers make. It implements volume.BlockKind.
type Kind struct {
	host   volume.Host
	parts  Parts
	tree   tree
	turns  turns.Turns[key]
	inUse  inuse.Volumes[key]
	growth grow.Growth[key]

	again wake.Signal // Run looks for volumes that no pod uses

	mu       sync.Mutex
	put      map[string]bool    // where calls have put a volume in this life, and whether it is mounted there
	tokensOf map[tokenKey]token // see tokens
	full     map[string]bool    // drivers that refreshSoon asks
	health   map[key]*disk.Health
	crew     sync.WaitGroup // what refreshSoon has begun
}

var _ volume.BlockKind = (*Kind)(nil)

// New makes the kind of a host and reads which volumes lie on it.
func New(host volume.Host, parts Parts) *Kind {
	if parts.Again == nil {
		parts.Again = wake.New()
	}
	k := &Kind{host: host, parts: parts, tree: tree(host.Root), again: parts.Again, put: map[string]bool{}, tokensOf: map[tokenKey]token{}, full: map[string]bool{}, health: map[key]*disk.Health{}}
	k.turns.Limit, k.inUse.Changed = callTime, parts.Changed
	k.growth.Parts = grow.Parts{NodeName: parts.NodeName, Objects: parts.Objects, Events: parts.Events, Clock: parts.Clock, Limit: growTime}
	if err := k.tree.sweep(); err != nil {
		klog.ErrorS(err, "Cannot remove unfinished records of CSI volumes; their directories stay")
	}
	users, err := k.tree.users()
	for _, u := range users {
		if u.undone() {
			continue
		}
		if err = errors.Join(err, u.err); u.err == nil && u.data.Lifecycle != string(storagev1.VolumeLifecycleEphemeral) {
			k.inUse.Add(u.data.key(), u.uid)
		}
	}
	staged, more := k.tree.staged()
	for _, s := range staged {
		if len(others(users, "", s.data.key(), s.spec)) == 0 {
			k.inUse.Add(s.data.key(), "")
		}
	}
	if err = errors.Join(err, more); err != nil {
		klog.ErrorS(err, "Cannot read all records of CSI volumes; leaving those volumes as they are")
	}
	return k
}

// Name implements volume.Kind.
func (*Kind) Name() string { return pluginName }

// Has implements volume.Kind.
func (*Kind) Has(v volume.Volume) bool {
	if v.PV != nil {
		return v.PV.Spec.CSI != nil || inTree.IsPVMigratable(v.PV)
	}
	return v.Spec.CSI != nil || inTree.IsInlineMigratable(v.Spec)
}

// Mount implements volume.Kind.
func (k *Kind) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	d, err := describe(v)
	at := k.tree.at(v.Pod.UID, d.key, d.spec, false)
	return volume.Mount{Path: at.target, ReadOnly: d.readOnly, Linked: true, Confine: func(end links.End) error { return confine(k.host, d, at, end) }}, err
}

// Device implements volume.BlockKind.
func (k *Kind) Device(v volume.Volume) (string, error) {
	d, err := describe(v)
	return k.tree.at(v.Pod.UID, d.key, d.spec, true).target, err
}

// mounted says whether something is mounted at path, or on Windows linked.
func (k *Kind) mounted(path string) (bool, error) {
	found, err := points(k.host, path)
	return slices.Contains(found, path), err
}

// points lists what is mounted at path and below it, on Windows path itself if it is a link. It asks the mount table, because a hung file system
// does not answer; a link is read without a look at what it leads to.
func points(host volume.Host, path string) ([]string, error) {
	if host.Platform.OS != "windows" {
		return host.Mounts.Below(path)
	}
	if linked, err := host.Mounts.IsMount(path); err != nil || !linked {
		return nil, err
	}
	return []string{path}, nil
}

// ready says whether v was published, with everything that belongs to it, and still is.
func (k *Kind) ready(v volume.Volume, at place) (bool, error) {
	boot, made, err := v.MadeWith()
	if err != nil || !made || boot != k.parts.Boot {
		return false, err
	}
	if mounted, err := k.host.Mounts.Has(at.target); err != nil || mounted { // asked for each volume of a running pod once a minute
		return mounted, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	was, done := k.put[at.target]
	return done && !was, nil // by a driver that mounts nothing
}

// Prepare implements volume.Kind. The volume of a running pod needs neither API server nor driver.
func (k *Kind) Prepare(ctx context.Context, v volume.Volume) (string, error) {
	d, err := describe(v)
	if err != nil {
		return "", err
	}
	if err := checkNames(k.host.Platform, d); err != nil {
		return "", err
	}
	if d.migrated {
		ctx = csi.Migrated(ctx)
	}
	at := k.tree.at(v.Pod.UID, d.key, d.spec, d.block)
	ready, err := k.ready(v, at)
	if err != nil {
		return "", err
	}
	if ready {
		unknown := (&work{kind: k, d: d, at: at, v: &v}).keepRecords()
		if unknown != nil {
			klog.ErrorS(unknown, "Cannot keep the records of a CSI volume; the pod keeps what it has", "pod", klog.KObj(v.Pod), "volume", v.Spec.Name)
		}
		object := k.parts.Objects.KnownCSIDriver(d.driver)
		if object == nil || !isTrue(object.Spec.RequiresRepublish) {
			if unknown == nil {
				k.growSoon(v, d, at)
			}
			return at.target, nil
		}
	}
	err = k.bring(ctx, v, d, at, ready)
	if ready && err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Cannot publish a CSI volume again; the pod keeps what it has", "pod", klog.KObj(v.Pod), "volume", v.Spec.Name, "driver", d.driver)
		return at.target, nil
	}
	if err == nil {
		k.growSoon(v, d, at)
	}
	return at.target, err
}

// bring makes v ready.
func (k *Kind) bring(ctx context.Context, v volume.Volume, d described, at place, ready bool) error {
	object, err := k.parts.Objects.CSIDriver(ctx, d.driver)
	if err != nil {
		return fmt.Errorf(pluginName+": cannot read CSIDriver %s: %w", d.driver, err)
	}
	r, err := rulesFor(d, object)
	if err != nil {
		return err
	}
	if d, err = labelled(d, r, k.parts.SELinux, v.Pod, v.Spec.Name); err != nil {
		return err
	}
	driver, err := k.parts.Drivers.Driver(d.driver)
	if err != nil {
		return fmt.Errorf(pluginName+": mounter.SetUpAt failed to get CSI client: %w", err)
	}
	w := &work{kind: k, driver: driver, d: d, at: at, uid: v.Pod.UID, v: &v}
	var metadata map[string]string
	if r.attach {
		if metadata, err = k.attached(ctx, v.Pod.UID, d); err != nil {
			return err
		}
	}
	if w.in, err = k.inputs(ctx, v.Pod, d, r, w.stages() && !ready); err != nil {
		return err
	}
	w.in.attached = metadata
	has := can{stage: w.stages()}
	if group := k.host.Access.FSGroup(v.Pod); group != nil && !d.block {
		if w.groups() {
			w.in.group = group
		} else {
			has.group = changesGroup(d, r.group)
		}
	}
	if w.held, err = k.turns.Enter(ctx, d.key); err != nil {
		return err
	}
	defer w.held.Release()
	before, err := k.look(v.Pod.UID, d, at, ready)
	if err != nil {
		return err
	}
	steps, err := bringUp(d, r, has, before)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := w.do(ctx, s); err != nil {
			return errors.Join(err, w.all(ctx, afterFailure(d, has, s, final(err), w.leaves(s), before)))
		}
	}
	return nil
}

// look reads what is known of a volume for a pod. It fails if another volume lies there according to the disk.
func (k *Kind) look(uid types.UID, d described, at place, ready bool) (seen, error) {
	all, err := k.tree.users()
	if err != nil {
		return seen{}, err
	}
	s := seen{ready: ready, others: others(all, uid, d.key, d.spec)}
	for _, u := range all {
		if u.uid != uid || u.spec != d.spec || u.block != d.block {
			continue
		}
		s.own = true
		if err := k.checkOwn(u, d, at); err != nil {
			return s, err
		}
	}
	node, err := readData(at.nodeDir)
	switch {
	case err == nil && node.key() != d.key:
		return s, fmt.Errorf("%s holds volume %s of driver %s; want %s of %s: waiting until no pod uses the former", at.nodeDir, node.Handle, node.DriverName, d.handle, d.driver)
	case err == nil:
		s.recorded = true
	case !errors.Is(err, fs.ErrNotExist):
		klog.ErrorS(err, "Writing the record of a CSI volume again", "volume", d.handle)
	}
	mounted, err := k.mounted(at.staging)
	k.mu.Lock()
	defer k.mu.Unlock()
	was, done := k.put[at.staging]
	s.staged = s.recorded && done && was == mounted
	return s, err
}

// checkOwn compares the pod's record of d with it. One that cannot be read is written again, unless something is mounted that it may be of.
func (k *Kind) checkOwn(u user, d described, at place) error {
	if u.err == nil && u.data.key() != d.key {
		return otherVolume(d, u.data)
	}
	if u.err != nil {
		if mounted, err := k.mounted(at.target); err != nil || mounted {
			return errors.Join(u.err, err)
		}
		klog.ErrorS(u.err, "Writing the record of a CSI volume again", "pod", u.uid, "volume", d.handle)
	}
	return nil
}

// otherVolume returns the error that the pod's record of d is have, that of another volume.
func otherVolume(d described, have data) error {
	return fmt.Errorf("%s holds volume %s of driver %s; want %s of %s: delete the pod, so that the former is unmounted", d.spec, have.Handle, have.DriverName, d.handle, d.driver)
}

// Clean implements volume.Kind. Volumes of different drivers do not wait for each other.
func (k *Kind) Clean(ctx context.Context, left volume.Remains) error {
	users, err := k.tree.usersOf(left.UID)
	errs := make([]error, len(users)+1)
	errs[len(users)] = err
	var all sync.WaitGroup
	for i, u := range users {
		all.Go(func() { errs[i] = k.release(ctx, u) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	k.inUse.DropAll(left.UID)
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.tokensOf {
		if key.uid == left.UID {
			delete(k.tokensOf, key)
		}
	}
	return nil
}

// release undoes what was done for one volume of a pod.
func (k *Kind) release(ctx context.Context, u user) error {
	if u.undone() {
		return (&work{kind: k, at: k.tree.at(u.uid, key{}, u.spec, true), uid: u.uid}).forgetLink(u.err)
	}
	if u.err != nil {
		return u.err
	}
	w, before, err := k.ending(ctx, u)
	if err != nil {
		return err
	}
	defer w.held.Release()
	ofPod, ofNode, end := takeDown(before)
	if err := w.all(ctx, ofPod); err != nil {
		return err
	}
	staged := w.all(ctx, ofNode)
	if staged != nil {
		if err := keepStaged(w); err != nil {
			return errors.Join(staged, err)
		}
		klog.ErrorS(staged, "Cannot unstage a CSI volume that no pod uses; trying again", "pod", u.uid, "driver", w.d.driver, "volume", strings.ToValidUTF8(w.d.handle, "?"))
		k.inUse.Add(w.d.key, "")
		defer k.again.Send()
	}
	if err := w.all(ctx, end); err != nil {
		return err
	}
	if before.twin {
		return nil
	}
	k.inUse.Drop(w.d.key, u.uid)
	if len(before.others) == 0 {
		if staged == nil {
			k.inUse.Drop(w.d.key, "")
		}
		source{kind: k, key: w.d.key}.setHealth(nil)
		k.growth.End(w.d.key)
	}
	return nil
}

// ending returns the work on a volume of a pod that ends, with its turn, and what is known of the volume.
func (k *Kind) ending(ctx context.Context, u user) (*work, seen, error) {
	volume := u.data.key()
	at := k.tree.at(u.uid, volume, u.spec, u.block)
	held, err := k.turns.Enter(ctx, volume)
	if err != nil {
		return nil, seen{}, err
	}
	all, err := k.tree.users()
	if err != nil {
		held.Release()
		return nil, seen{}, err
	}
	w := &work{kind: k, held: held, d: described{key: volume, spec: u.spec, block: u.block, label: u.data.SELinux}, at: at, uid: u.uid}
	s := seen{others: others(all, u.uid, volume, u.spec), twin: twin(all, u)}
	// A record that cannot be read is replaced by the pod's, which says the same. So is one that is lost while the volume is staged.
	if _, err := readData(at.nodeDir); !errors.Is(err, fs.ErrNotExist) {
		s.recorded = true
	} else if s.recorded, err = mayBeStaged(k, at.staging); err != nil {
		held.Release()
		return nil, seen{}, err
	}
	return w, s, nil
}

// orphans unstages volumes that only the node has a record of.
func (k *Kind) orphans(ctx context.Context) error {
	staged, err := k.tree.staged()
	for _, s := range staged {
		err = errors.Join(err, k.orphan(ctx, s))
	}
	return err
}

func (k *Kind) orphan(ctx context.Context, s stagedVolume) error {
	held, err := k.turns.Enter(ctx, s.data.key())
	if err != nil {
		return err
	}
	defer held.Release()
	all, err := k.tree.users()
	if err != nil {
		return err
	}
	at := k.tree.at("", s.data.key(), s.spec, s.block)
	if _, err := readData(at.nodeDir); errors.Is(err, fs.ErrNotExist) {
		k.inUse.Drop(s.data.key(), "")
		return nil
	}
	used := len(others(all, "", s.data.key(), s.spec)) > 0
	for _, u := range all {
		switch {
		case u.err == nil || u.undone():
		case used:
			return nil // a pod whose record cannot be read may use it longer than the others
		default:
			return fmt.Errorf("keeping volume %s of driver %s staged, because it may be that of pod %s: %w", s.data.Handle, s.data.DriverName, u.uid, u.err)
		}
	}
	if used {
		k.inUse.Drop(s.data.key(), "")
		return nil
	}
	w := &work{kind: k, held: held, d: described{key: s.data.key(), spec: s.spec, block: s.block}, at: at}
	if err := w.all(ctx, takeDownOrphan()); err != nil {
		return err
	}
	k.inUse.Drop(s.data.key(), "")
	klog.InfoS("Unstaged a CSI volume that no pod used", "driver", s.data.DriverName, "volume", strings.ToValidUTF8(s.data.Handle, "?"))
	return nil
}
