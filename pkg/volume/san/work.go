package san

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// work brings one disk to a pod, or releases it. It has the turn of the disk.
type work struct {
	kind    *Kind
	record  *record
	use     use
	volume  *volume.Volume // nil: no pod uses the disk
	secrets secrets
	seen    ending
}

// ready reports whether the pod has the volume as it should be. For a device that is not what an earlier boot has left: names of devices change.
func (w *work) ready() (bool, error) {
	made, err := w.volume.Made()
	if err != nil || !made {
		return false, err
	}
	if u, err := os.ReadFile(w.kind.tree.useFile(w.use)); err != nil || string(u) != w.use.key {
		return false, nil //nolint:nilerr // it is written again
	}
	if err := w.look(); err != nil {
		return false, err
	}
	return w.seen.placed && (!w.record.Block || w.seen.device() != ""), nil
}

// bringUp makes the volume ready for the pod.
func (w *work) bringUp(ctx context.Context) error {
	w.seen = ending{}
	w.seen.tried, w.seen.failed = map[step]bool{}, map[string]error{}
	w.seen.group = w.kind.host.Access.FSGroup(w.volume.Pod) != nil
	for {
		if err := w.look(); err != nil {
			return err
		}
		st, err := next(w.record, &w.seen.seen)
		if err != nil || st.do == done {
			return err
		}
		if err := w.once(ctx, st); err != nil {
			return err
		}
	}
}

// takeDown releases the disk from the node.
func (w *work) takeDown(ctx context.Context) error {
	w.seen.tried = map[step]bool{}
	for {
		if err := w.lookEnding(); err != nil {
			return err
		}
		st, err := nextDown(w.record, &w.seen)
		if err != nil {
			return err
		}
		if err := w.once(ctx, st); err != nil || w.seen.gone {
			return err
		}
	}
}

// once takes a step. One that has changed nothing is not repeated in this attempt.
func (w *work) once(ctx context.Context, st step) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if w.seen.tried[st] {
		return fmt.Errorf("%s has had no effect; trying again", st)
	}
	w.seen.tried[st] = true
	klog.V(2).InfoS("Working on a disk", "disk", w.record.Unique, "step", st.String())
	err := w.do(ctx, st)
	if err != nil && (st.do == connect || st.do == scan) && ctx.Err() == nil {
		w.seen.failed[st.on], err = err, nil // another way may do
	}
	return err
}

func (w *work) do(ctx context.Context, st step) error {
	k := w.kind
	switch st.do {
	case writeRecord:
		return k.save(w.record, nil)
	case connect:
		return w.connect(ctx, st.on)
	case scan:
		return k.parts.System.scan(w.path(st.on), w.record.LUN)
	case awaitDevice:
		return w.await(ctx, deviceWait, func() bool { return w.path(st.on).device != "" })
	case awaitMap:
		err := w.await(ctx, mapWait, func() bool { return w.seen.mapped != "" })
		if err == nil && w.seen.mapped == "" {
			klog.InfoS("multipathd has not joined the ways to a disk; using one of them until no pod has the disk. See find_multipaths in multipath.conf(5)", "disk", w.record.Unique, "waited", mapWait)
		}
		return err
	case probe:
		return w.probe(ctx, st.on)
	case format:
		return w.format(ctx, st.on)
	case check:
		return w.check(ctx, st.on)
	case mountNode:
		return w.mount(ctx, st.on)
	case bindPod:
		return w.bind()
	case linkPod:
		return w.link(st.on)
	case giveGroup:
		w.seen.grouped = true
		return k.host.Access.SetGroup(k.tree.target(w.use), w.volume.Pod.Spec.SecurityContext, false)
	case mark:
		return w.volume.SetMade()
	case unmountNode:
		return w.unmount()
	case flushMap:
		_, err := k.parts.Run.Run(ctx, nil, "multipath", "-f", st.on)
		return err
	case deleteDevice:
		return k.parts.System.remove(st.on)
	case disconnect:
		return w.disconnect(ctx, st.on)
	case forgetWays:
		return w.forgetWays(ctx)
	case forgetRecord:
		return w.forgetRecord(ctx)
	}
	return fmt.Errorf("step %q is not known", st)
}

// path returns the way of that name as last seen.
func (w *work) path(name string) path {
	if i := slices.IndexFunc(w.seen.paths, func(p path) bool { return p.name == name }); i >= 0 {
		return w.seen.paths[i]
	}
	return path{name: name}
}

// look reads what is known of the disk. It looks neither at the disk nor behind a mount, which may hang.
func (w *work) look() error {
	k, s := w.kind, &w.seen.seen
	var err error
	if s.paths, err = k.protocol.look(w.record); err != nil {
		return err
	}
	s.mapped, s.mapper = k.parts.System.mapped(s.paths), k.parts.System.mapper()
	if s.mounted, err = mounted(k.host, k.tree.node(w.record)); err != nil {
		return err
	}
	have, err := k.tree.record(w.record.key())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.ErrorS(err, "Writing the record of a disk again", "disk", w.record.Unique)
	}
	// While the disk is mounted, its record says how, whatever another pod wants.
	s.recorded = err == nil && (s.mounted && !have.Adopted || have.describes(*w.record))
	if err == nil {
		s.readOnly, s.begun, w.record.Begun, w.record.Finds = have.ReadOnly, have.Begun, have.Begun, have.Finds
		w.record.own(have.Ours)
	}
	if w.volume == nil {
		return nil
	}
	if s.made, err = w.volume.Made(); err != nil {
		return err
	}
	if w.record.Block {
		to, err := os.Readlink(k.tree.link(w.use))
		s.placed = err == nil && s.device() != "" && to == join(k.parts.System.Dev, s.device())
		return nil
	}
	s.placed, err = mounted(k.host, k.tree.target(w.use))
	return err
}

func mounted(host volume.Host, path string) (bool, error) {
	points, err := host.Mounts.Below(path)
	return slices.Contains(points, path), err
}

// lookEnding is look for a disk that no pod uses.
func (w *work) lookEnding() error {
	if err := w.look(); err != nil {
		return err
	}
	k, s := w.kind, &w.seen
	if w.record.Block && !s.mounted { // upstream's kubelet mounts a device for each pod below
		points, err := k.host.Mounts.Below(k.tree.node(w.record))
		if s.mounted = len(points) > 0; err != nil {
			return err
		}
	}
	if w.record.Adopted && !s.mounted {
		k.protocol.load(w.record, k.tree.node(w.record))
	}
	all, err := k.tree.records()
	if err != nil {
		return err
	}
	s.shared, s.others, s.busy = false, nil, ""
	for _, other := range all {
		if other.key() == w.record.key() {
			continue
		}
		s.shared = s.shared || other.sameDisk(w.record)
		if other.sameTarget(w.record) {
			s.others = append(s.others, other.Portals...)
		}
	}
	if s.mounted {
		return nil
	}
	for _, p := range s.paths {
		device := p.device
		if s.mapped != "" {
			device = s.mapped
		}
		if device == "" {
			continue
		}
		used, err := k.parts.System.Claimed(join(k.parts.System.Dev, device))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.V(2).InfoS("Cannot see whether a disk is in use; it does not answer", "device", device, "err", err)
		}
		if used {
			s.busy = device
		}
	}
	return nil
}

// save writes the record of a disk, with what is known of sessions: a portal is ours if this or another disk's record has it so, or more says it.
func (k *Kind) save(r *record, more []string) error {
	k.saving.Lock()
	defer k.saving.Unlock()
	have, err := k.tree.record(r.key())
	if err == nil {
		more = append(more, have.Ours...)
	}
	all, err := k.tree.records()
	if err != nil {
		klog.ErrorS(err, "Cannot read the records of all disks", "kind", k.Name())
	}
	for _, other := range all {
		if other.sameTarget(r) {
			more = append(more, other.Ours...)
		}
	}
	r.own(more)
	return k.tree.write(r)
}

// forget deletes the record of a disk. Sessions that are ours and that other disks use become theirs.
func (k *Kind) forget(r *record) error {
	k.saving.Lock()
	defer k.saving.Unlock()
	all, err := k.tree.records()
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.key() == r.key() || !other.sameTarget(r) {
			continue
		}
		before := len(other.Ours)
		if other.own(r.Ours); len(other.Ours) > before {
			if err := k.tree.write(&other); err != nil {
				return err
			}
		}
	}
	return k.tree.forget(r)
}

// target enters the turn of the sessions of the disk: two disks of a target neither log in to it at the same time, nor out while the other needs it.
func (w *work) target(ctx context.Context, do func() error) error {
	turn, err := w.kind.turns.Enter(ctx, "target "+w.record.IQN+" "+w.record.Iface)
	if err != nil {
		return err
	}
	defer turn.Release()
	return do()
}

// connect logs in to a portal, unless another disk has done so meanwhile.
func (w *work) connect(ctx context.Context, portal string) error {
	return w.target(ctx, func() error {
		if err := w.look(); err != nil {
			return err
		}
		if w.path(portal).session != "" {
			return w.kind.save(w.record, nil)
		}
		// Before the login, so that a killed agent leaves no session that is no one's.
		w.kind.protocol.announce(w.record, portal)
		if err := w.kind.save(w.record, []string{portal}); err != nil {
			return err
		}
		err := w.kind.protocol.connect(ctx, w.record, portal, w.secrets)
		w.kind.protocol.settle(w.record)
		return errors.Join(err, w.kind.save(w.record, nil))
	})
}

// disconnect logs out of a portal, unless another disk uses it by now.
func (w *work) disconnect(ctx context.Context, portal string) error {
	return w.target(ctx, func() error {
		if err := w.lookEnding(); err != nil || slices.Contains(w.seen.others, portal) {
			return err
		}
		w.forgetAgain() // its record stayed while there was a session
		return w.kind.protocol.disconnect(ctx, w.record, w.path(portal))
	})
}

// forgetWays deletes what logins have left.
func (w *work) forgetWays(ctx context.Context) error {
	return w.target(ctx, func() error {
		if err := w.lookEnding(); err != nil {
			return err
		}
		w.seen.forgot, w.seen.kept = true, len(w.seen.others) > 0
		return w.kind.protocol.forget(ctx, w.record, w.seen.kept)
	})
}

// forgetAgain has what logins have left looked for once more: the session is gone, or another disk of the target is.
func (w *work) forgetAgain() {
	w.seen.forgot = false
	delete(w.seen.tried, step{do: forgetWays})
	delete(w.seen.tried, step{do: forgetRecord})
}

// forgetRecord deletes the disk's record. Two disks of a target that are released at the same time leave its sessions to each other, so the
// last one looks again: what the other has left is its to end.
func (w *work) forgetRecord(ctx context.Context) error {
	return w.target(ctx, func() error {
		if err := w.lookEnding(); err != nil {
			return err
		}
		if st, err := nextDown(w.record, &w.seen); err != nil || st.do != forgetRecord || w.seen.kept && len(w.seen.others) == 0 {
			w.forgetAgain()
			return err
		}
		w.seen.gone = true
		return w.kind.forget(w.record)
	})
}

// await waits for an event of the kernel after which ok holds. That it did not come is no error: the plan goes on with what there is.
func (w *work) await(ctx context.Context, limit time.Duration, ok func() bool) error {
	changed, stop, err := w.kind.parts.System.Events()
	if err != nil {
		return err
	}
	defer stop()
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		if err := w.look(); err != nil || ok() {
			return err
		}
		select {
		case <-changed:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// bind gives the mounted disk to the pod.
func (w *work) bind() error {
	dir, err := os.OpenFile(w.kind.tree.node(w.record), mount.OpenPath, 0)
	if err != nil {
		return fmt.Errorf("cannot open the mounted disk: %w", err)
	}
	defer dir.Close()
	target := w.kind.tree.target(w.use)
	if err := os.MkdirAll(target, paths.DirMode); err != nil {
		return fmt.Errorf("cannot make the directory of the volume: %w", err)
	}
	return w.kind.host.Mounts.Bind(dir, target)
}

// link gives the device to the pod.
func (w *work) link(device string) error {
	dir, link := w.kind.tree.node(w.record), w.kind.tree.link(w.use)
	if err := os.MkdirAll(dir, paths.DirMode); err != nil {
		return fmt.Errorf("cannot make the directory of the disk: %w", err)
	}
	if err := w.kind.protocol.save(w.record, dir); err != nil {
		return fmt.Errorf("cannot write upstream's record of the disk: %w", err)
	}
	err := os.MkdirAll(filepath.Dir(link), paths.DirMode)
	if err == nil {
		if err = os.Remove(link); err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.Symlink(w.dev(device), link)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot make the link to the device: %w", err)
	}
	return nil
}

// unmount unmounts the disk from the node.
func (w *work) unmount() error {
	dir := w.kind.tree.node(w.record)
	points, err := w.kind.host.Mounts.Below(dir)
	for _, p := range slices.Backward(points) {
		if err := w.kind.host.Mounts.Unmount(p); err != nil {
			return err
		}
	}
	return err
}
