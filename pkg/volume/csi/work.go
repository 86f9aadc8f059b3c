package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/turns"
)

// callTime is how long a driver may take for one call, as in upstream.
const callTime = 2 * time.Minute

// work carries out steps for one volume of a pod. It holds the volume's turn.
type work struct {
	kind   *Kind
	held   *turns.Turn
	driver csi.Driver // nil: looked up when it is needed
	d      described  // of a pod that ends: key, spec and block alone
	in     inputs
	at     place
	uid    types.UID
	v      *volume.Volume // nil: of a pod that ends
}

func (w *work) stages() bool {
	return !w.d.ephemeral && w.driver.Has(pb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
}

// groups reports whether the driver gives a volume to a group.
func (w *work) groups() bool { return w.driver.Has(pb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) }

func (w *work) multiWriter() bool {
	return w.driver.Has(pb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
}

func (w *work) all(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := w.do(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) do(ctx context.Context, s step) error {
	switch s {
	case recordPod:
		return w.recordPod()
	case recordVolume:
		return writeData(w.at.nodeDir, w.nodeRecord())
	case stage:
		return w.stage(ctx)
	case publish:
		return w.publish(ctx)
	case giveGroup:
		return w.held.Do(ctx, func(context.Context) error {
			if err := w.kind.host.Access.SetGroup(w.at.target, w.v.Pod.Spec.SecurityContext, false); err != nil {
				return fmt.Errorf("applyFSGroup failed for vol %s: %w", w.d.handle, err)
			}
			return nil
		})
	case mark:
		return w.v.SetMadeWith(w.kind.parts.Boot)
	case unpublish:
		return w.unpublish(ctx)
	case unmountPod:
		return w.unmount(ctx, w.at.target)
	case unstage:
		return w.unstage(ctx)
	case unmountStage:
		return w.unmountStage(ctx)
	case forgetVolume:
		return w.forgetVolume()
	case forgetPod:
		return w.forgetPod()
	}
	return fmt.Errorf("step %q is not known", s)
}

// record is what upstream writes into a pod's directory, and for devices beside the volume.
func (w *work) record() data {
	d := data{
		SpecVolID: w.d.spec, Handle: w.d.handle, DriverName: w.d.driver, NodeName: w.kind.parts.NodeName,
		AttachmentID: w.d.attachment(w.kind.parts.NodeName), SELinux: w.d.label,
	}
	if !w.d.block {
		d.Lifecycle = string(w.d.lifecycle())
	}
	return d
}

func (w *work) nodeRecord() data {
	if w.d.block {
		return w.record()
	}
	return data{Handle: w.d.handle, DriverName: w.d.driver, SELinux: w.d.label}
}

func (w *work) recordPod() error {
	if w.at.link == "" {
		return writeData(w.at.podDir, w.record())
	}
	err := os.MkdirAll(filepath.Dir(w.at.link), paths.DirMode)
	if err == nil {
		if to, missing := os.Readlink(w.at.link); missing == nil && to == w.at.target {
			return nil
		}
		if err = os.Remove(w.at.link); err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.Symlink(w.at.target, w.at.link)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot record a CSI volume: %w", err)
	}
	return nil
}

// keepRecords writes the records of a volume that is ready again where they are lost or cannot be read: the pod's end needs them. A record that
// names another volume may be right, because a PersistentVolume of that name was deleted and made again: it stays, and is the error.
func (w *work) keepRecords() error {
	dir := w.at.podDir
	if w.d.block {
		dir = w.at.nodeDir
	}
	switch have, err := readData(dir); {
	case err == nil && have.key() != w.d.key:
		return otherVolume(w.d, have)
	case err != nil:
		klog.ErrorS(err, "Writing the record of a CSI volume again", "pod", w.v.Pod.UID, "volume", w.d.handle)
		if !w.d.ephemeral {
			w.kind.inUse.Add(w.d.key, w.v.Pod.UID)
		}
		if err := writeData(dir, w.record()); err != nil {
			return err
		}
	}
	return w.keepNodeRecord()
}

// keepNodeRecord writes the node's record of a staged file system again. That of a device is the pods' too.
func (w *work) keepNodeRecord() error {
	if w.d.block || w.d.ephemeral {
		return nil
	}
	have, missing := readData(w.at.nodeDir)
	if missing == nil && have.key() == w.d.key {
		return nil
	}
	if staged, err := mayBeStaged(w.kind, w.at.staging); err != nil || !staged {
		return err
	}
	klog.ErrorS(missing, "Writing the node's record of a CSI volume again", "pod", w.v.Pod.UID, "volume", w.d.handle)
	return writeData(w.at.nodeDir, w.nodeRecord())
}

// keepStaged writes the node's record of a volume that could not be unstaged, if it is lost or cannot be read: without the pod's, Run needs it.
func keepStaged(w *work) error {
	if have, err := readData(w.at.nodeDir); err == nil && have.key() == w.d.key {
		return nil
	}
	return writeData(w.at.nodeDir, w.nodeRecord())
}

// mayBeStaged says whether a volume may be staged there, whatever the node's record says: a driver that mounts nothing leaves the directory alone. It
// does not look into that, because it may hang.
func mayBeStaged(k *Kind, staging string) (bool, error) {
	have, err := names(filepath.Dir(staging))
	if err != nil || slices.Contains(have, filepath.Base(staging)) {
		return err == nil, err
	}
	return k.mounted(staging)
}

func (w *work) stage(ctx context.Context) error {
	mounted, err := w.kind.mounted(w.at.staging)
	if err == nil && !mounted { // a look at what is mounted may hang
		err = os.MkdirAll(w.at.staging, paths.DirMode)
	}
	if err != nil {
		return fmt.Errorf("cannot make the staging directory: %w", err)
	}
	request := stageRequest(w.d, w.in, w.at.staging, w.multiWriter())
	err = w.held.Do(ctx, func(ctx context.Context) error {
		_, err := w.driver.Node().NodeStageVolume(ctx, request)
		return err
	})
	if err != nil {
		return err
	}
	return w.remember(w.at.staging)
}

func (w *work) publish(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(w.at.target), paths.DirMode); err != nil {
		return fmt.Errorf("cannot make the directory of the volume: %w", err)
	}
	staged := ""
	if w.stages() {
		staged = w.at.staging
	}
	request := publishRequest(w.d, w.in, staged, w.at.target, w.multiWriter())
	err := w.held.Do(ctx, func(ctx context.Context) error {
		_, err := w.driver.Node().NodePublishVolume(ctx, request)
		return err
	})
	if err != nil {
		return err
	}
	return w.remember(w.at.target)
}

// remember records that a call has put a volume at path, and whether it is mounted there: not all drivers mount.
func (w *work) remember(path string) error {
	mounted, err := w.kind.mounted(path)
	if err != nil {
		return err
	}
	w.kind.mu.Lock()
	defer w.kind.mu.Unlock()
	w.kind.put[path] = mounted
	return nil
}

func (w *work) forget(path string) {
	w.kind.mu.Lock()
	defer w.kind.mu.Unlock()
	delete(w.kind.put, path)
}

// find looks up the driver for a pod that ends. Without it the volume stays as it is.
func (w *work) find(what string) error {
	if w.driver != nil {
		return nil
	}
	driver, err := w.kind.parts.Drivers.Driver(w.d.driver)
	if err != nil {
		return fmt.Errorf(pluginName+": %s failed to get CSI client: %w; volume %s stays until the driver is back", what, err, w.d.handle)
	}
	w.driver = driver
	return nil
}

func (w *work) unpublish(ctx context.Context) error {
	if err := w.find("Unmounter.TearDownAt"); err != nil {
		return err
	}
	err := w.held.Do(ctx, func(ctx context.Context) error {
		_, err := w.driver.Node().NodeUnpublishVolume(ctx, &pb.NodeUnpublishVolumeRequest{VolumeId: w.d.handle, TargetPath: w.at.target})
		return err
	})
	if err = w.unlessGone(err, w.at.target); err != nil {
		return fmt.Errorf(pluginName+": Unmounter.TearDownAt failed: %w", err)
	}
	w.forget(w.at.target)
	return nil
}

func (w *work) unstage(ctx context.Context) error {
	if err := w.find("attacher.UnmountDevice"); err != nil {
		return err
	}
	if !w.stages() {
		return nil
	}
	w.forget(w.at.staging) // however the call ends: one without an answer may have done its work
	err := w.held.Do(ctx, func(ctx context.Context) error {
		_, err := w.driver.Node().NodeUnstageVolume(ctx, &pb.NodeUnstageVolumeRequest{VolumeId: w.d.handle, StagingTargetPath: w.at.staging})
		return err
	})
	if err = w.unlessGone(err, w.at.staging); err != nil {
		return fmt.Errorf(pluginName+": attacher.UnmountDevice failed: %w", err)
	}
	return nil
}

// unlessGone drops the error of a driver that no longer knows the volume, if nothing is mounted at path either.
func (w *work) unlessGone(err error, path string) error {
	if status.Code(err) != codes.NotFound {
		return err
	}
	if mounted, wrong := w.kind.mounted(path); wrong != nil || mounted {
		return errors.Join(err, wrong)
	}
	return nil
}

// unmount removes what a driver has left mounted at path, although it has said that it is done.
func (w *work) unmount(ctx context.Context, path string) error {
	left, err := points(w.kind.host, path)
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(left) {
		klog.InfoS("Unmounting what a CSI driver has left mounted", "driver", w.d.driver, "volume", w.d.handle, "path", p)
		if err := w.held.Do(ctx, func(context.Context) error { return w.kind.host.Mounts.Unmount(p) }); err != nil {
			return err
		}
	}
	if left, err = points(w.kind.host, path); err == nil && len(left) > 0 {
		err = fmt.Errorf("%s is still mounted", left[0])
	}
	return err
}

// unmountStage is unmount for what the node has of a volume. Of a device, upstream's kubelet also mounts a copy for each pod.
func (w *work) unmountStage(ctx context.Context) error {
	if err := w.unmount(ctx, w.at.staging); err != nil || !w.d.block {
		return err
	}
	dev := filepath.Join(filepath.Dir(w.at.nodeDir), "dev")
	if err := w.unmount(ctx, dev); err != nil {
		return err
	}
	copies, err := names(dev)
	for _, name := range copies {
		err = errors.Join(err, os.Remove(filepath.Join(dev, name)))
	}
	return err
}

// forgetVolume deletes the node's record. Directories that a driver has left files in stay: they may be data.
func (w *work) forgetVolume() error {
	own := w.at.nodeDir
	if w.d.block {
		own = filepath.Dir(own)
	}
	for _, dir := range []string{own, w.at.staging} {
		if left, err := points(w.kind.host, dir); err != nil || len(left) > 0 {
			return errors.Join(err, fmt.Errorf("cannot forget volume %s: something is mounted below %s: %q", w.d.handle, dir, left))
		}
	}
	if err := os.Remove(filepath.Join(w.at.nodeDir, dataFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot delete the record of a CSI volume: %w", err)
	}
	empty := []string{w.at.staging, w.at.nodeDir}
	if w.d.block {
		empty = append(empty, filepath.Dir(w.at.target), filepath.Join(own, "dev"), own)
	}
	for _, dir := range empty {
		w.removeEmpty(dir)
	}
	w.forget(w.at.staging)
	return nil
}

func (w *work) removeEmpty(dir string) {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.ErrorS(err, "Leaving a directory of a CSI volume where it is", "driver", w.d.driver, "volume", w.d.handle)
	}
}

// forgetPod deletes the pod's record. The rest of the directory goes with the pod's. A kill may have left the node's directory of a file system empty:
// before its record was written, or after it was deleted.
func (w *work) forgetPod() error {
	record := w.at.link
	if record == "" {
		record = filepath.Join(w.at.podDir, dataFile)
	}
	if err := os.Remove(record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot delete the record of a CSI volume: %w", err)
	}
	if w.at.link == "" {
		_ = os.Remove(w.at.nodeDir) // it fails if there is anything in it
	}
	return nil
}

// forgetLink ends what a kill has left of a device between forgetVolume and forgetPod. It returns missing where something is mounted nevertheless.
func (w *work) forgetLink(missing error) error {
	for _, path := range []string{w.at.target, w.at.staging} {
		if mounted, err := w.kind.mounted(path); err != nil || mounted {
			return errors.Join(missing, err)
		}
	}
	return w.forgetPod()
}

// leaves says whether something is mounted where a failed call should have put the volume, or may be.
func (w *work) leaves(failed step) bool {
	path := w.at.target
	if failed == stage {
		path = w.at.staging
	}
	mounted, err := w.kind.mounted(path)
	return mounted || err != nil
}
