package flex

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// name is the control plane's name of a volume: driver and directory.
type name string

// Unique implements inuse.Key.
func (n name) Unique() v1.UniqueVolumeName { return v1.UniqueVolumeName(n) }

// attachTime is how long a pod waits until its volume is attached. Then it gets an error.
const attachTime = 2 * time.Minute

// Reported takes the state of our Node in the API server. Each call must have a newer state.
func (k *Kind) Reported(node *v1.Node) { k.inUse.Reported(node) }

// InUse returns the names for status.volumesInUse, never nil. An attached volume is in use until its driver has unmounted it from the node.
func (k *Kind) InUse() []v1.UniqueVolumeName { return k.inUse.Names(func(name) bool { return true }) }

// attached waits until the control plane has attached the volume to this node and knows that it is in use, so that it does not detach it again.
// It returns the device that the driver's attach call has reported on the control plane.
func (k *Kind) attached(ctx context.Context, u use) (device string, err error) {
	k.inUse.Add(u.name(), u.uid)
	wait, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	a, err := k.inUse.Attached(wait, k.parts.Objects.NodeState, u.name())
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return "", fmt.Errorf("volume not attached according to node status for volume %q after %s; the driver attaches volumes, so kube-controller-manager must have it, too (--flex-volume-plugin-dir)",
			u.spec, attachTime)
	}
	return a.DevicePath, err
}

// mountDevice makes the driver mount an attached volume for the node, unless it is mounted. The directory is the record of that.
func (k *Kind) mountDevice(ctx context.Context, driver *driver, u use, device string, options *callOptions) error {
	dir := k.tree.device(u)
	if done, err := k.spots.placed(dir); err != nil || done {
		return err
	}
	a, err := driver.call(ctx, "waitforattach", options, device)
	switch {
	case err == nil:
		device = a.Device
		k.devices.Store(u.name(), device)
	case !errors.Is(err, errNotSupported):
		return err
	}
	k.inUse.Add(u.name(), "")
	if there, err := k.spots.there(dir); err != nil {
		return err
	} else if !there {
		if err := os.MkdirAll(dir, paths.DirMode); err != nil {
			return fmt.Errorf("cannot make the directory of the device: %w", err)
		}
	}
	_, err = driver.call(ctx, "mountdevice", options, dir, device)
	if errors.Is(err, errNotSupported) {
		err = nil
		if device != "" {
			err = fmt.Errorf(`mountdevice command failed: the driver answered "Not supported" for %s, which this node agent does not format by itself; want a driver that mounts its devices`, device)
		}
	}
	if err != nil {
		return err
	}
	return k.spots.place(dir)
}

// bind mounts the device's directory for the pod if the driver leaves that to the kubelet.
func (k *Kind) bind(u use, target string) error {
	dir, err := os.Open(k.tree.device(u))
	if err != nil {
		return fmt.Errorf("cannot open the directory of the device: %w", err)
	}
	defer dir.Close()
	return k.host.Mounts.Bind(dir, target)
}

// releaseDevices makes drivers unmount volumes that pod uid used and that no pod uses now. Run retries what fails.
func (k *Kind) releaseDevices(ctx context.Context, uid types.UID, uses []use) {
	had := k.inUse.Of(uid)
	for _, u := range uses {
		had = append(had, u.name())
	}
	k.inUse.DropAll(uid)
	devices, err := k.tree.devices(k.host.Platform)
	for _, u := range devices {
		if slices.Contains(had, u.name()) {
			err = errors.Join(err, k.orphan(ctx, u, uid))
		}
	}
	if err != nil {
		klog.ErrorS(err, "Cannot unmount a flexVolume that no pod uses; trying again", "pod", uid)
		k.again.Send()
	}
}

// orphan makes the driver unmount a volume from the node, unless a pod other than gone uses it.
func (k *Kind) orphan(ctx context.Context, u use, gone types.UID) error {
	err := k.turns.Do(ctx, u.key(), func(ctx context.Context) error {
		uses, err := k.tree.uses(k.host.Platform, "")
		if err != nil || slices.ContainsFunc(uses, func(other use) bool { return other.name() == u.name() && other.uid != gone }) {
			return err
		}
		return k.unmountDevice(ctx, u)
	})
	if err != nil {
		return fmt.Errorf("flexVolume driver %s: volume %s: %w", u.driver, u.spec, err)
	}
	return nil
}

func (k *Kind) unmountDevice(ctx context.Context, u use) error {
	dir := k.tree.device(u)
	there, err := k.spots.there(dir)
	if err != nil {
		return err
	}
	if there {
		driver, err := k.drivers.find(ctx, u.driver)
		if err != nil {
			return err
		}
		if _, err := driver.call(ctx, "unmountdevice", nil, dir); err != nil && !errors.Is(err, errNotSupported) {
			return err
		}
	}
	if err := k.spots.unmountAll(u.driver, dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("cannot remove the directory of the device: %w", err)
	}
	k.inUse.Drop(u.name(), "")
	k.devices.Delete(u.name())
	return nil
}

// Run makes drivers unmount attached volumes that no pod uses, also those of earlier runs of the agent and of upstream's kubelet, until ctx ends.
// It waits for missing drivers.
func (k *Kind) Run(ctx context.Context) error {
	volume.Tidy(ctx, k.Name(), k.again, func(ctx context.Context) error {
		devices, err := k.tree.devices(k.host.Platform)
		for _, u := range devices {
			err = errors.Join(err, k.orphan(ctx, u, ""))
		}
		return err
	})
	return nil
}

// devices lists the volumes that drivers may have mounted for the node.
func (t tree) devices(platform pod.Platform) (out []use, err error) {
	vendors, err := dirs(t.drivers())
	if err != nil {
		return nil, err
	}
	for _, vendor := range vendors {
		below, err := dirs(t.drivers(vendor))
		if err != nil {
			return nil, err
		}
		for _, driver := range append(below, "") {
			full := strings.TrimSuffix(vendor+"/"+driver, "/")
			specs, err := names(t.drivers(full, mountsDir))
			if err != nil {
				return nil, err
			}
			for _, spec := range specs {
				if checkName(platform, full) == nil {
					out = append(out, use{"", full, spec})
				}
			}
		}
	}
	return out, nil
}
