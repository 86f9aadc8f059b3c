package flex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/grow"
	"github.com/winkube/winkube/pkg/volume/turns"
)

// growTime covers reading the claim, and waiting for the volume's turn and the call.
const growTime = 2 * callWait

// growSoon has the driver expand v on this node if its claim has grown.
func (k *Kind) growSoon(v volume.Volume, d described) {
	if driver := k.drivers.recall(d.driver); v.Claim == "" || driver != nil && !driver.caps.RequiresFSResize {
		return
	}
	u := use{v.Pod.UID, d.driver, d.spec}
	k.growth.Soon(grow.Volume[name]{
		Volume: v, Key: u.name(), Spec: d.spec, Driver: d.driver, Target: k.tree.target(u),
		Expand: func(ctx context.Context, step grow.Step) error {
			if source := step.PV.Spec.FlexVolume; source == nil || source.Driver != d.driver {
				return grow.ErrNothing
			}
			driver, err := k.drivers.find(ctx, d.driver)
			if err != nil {
				return err
			}
			e := expansion{k, driver, u, k.tree.target(u), d.plainOptions()}
			if err := e.due(); err != nil {
				return err
			}
			if err := step.Begin(ctx); err != nil {
				return err
			}
			err = k.turns.Do(ctx, u.key(), func(ctx context.Context) error { return e.expand(ctx, step.From, step.To) })
			if err == nil || errors.Is(err, grow.ErrNothing) {
				return err
			}
			return &grow.Failure{Err: err, Final: ctx.Err() == nil && !errors.Is(err, turns.ErrBusy)}
		},
	})
}

// expansion is that of a pod's volume.
type expansion struct {
	*Kind
	driver  *driver
	use     use
	target  string // where the pod has it
	options *callOptions
}

// due returns ErrNothing if the pod does not have the volume, or the driver does not expand.
func (e expansion) due() error {
	if placed, err := e.spots.placed(e.target); err != nil {
		return err
	} else if !placed || !e.driver.caps.RequiresFSResize {
		return grow.ErrNothing
	}
	return nil
}

// expand has the driver expand the file system. The caller has the turn.
func (e expansion) expand(ctx context.Context, from, to resource.Quantity) error {
	if err := e.due(); err != nil { // the pod may have ended since the first look
		return err
	}
	device := e.device()
	_, err := e.driver.callWith(ctx, "expandfs", nil, e.options, device, e.target, strconv.FormatInt(to.Value(), 10), strconv.FormatInt(from.Value(), 10))
	if !errors.Is(err, errNotSupported) {
		return err
	}
	if device == "" || e.host.Platform.OS == "windows" {
		return errors.New(`expandfs command failed: the driver answered "Not supported"; want a driver that expands its volumes, or that has the capability "requiresFSResize": false`)
	}
	return e.resize(ctx, device)
}

// device returns the device of an attached volume: the answer to waitforattach, or since a restart of the agent what the Node has. "": none is known.
func (e expansion) device() string {
	if device, ok := e.devices.Load(e.use.name()); ok {
		return device.(string)
	}
	node, _ := e.parts.Objects.NodeState()
	if node == nil {
		return ""
	}
	i := slices.IndexFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == e.use.name().Unique() })
	if i < 0 {
		return ""
	}
	return node.Status.VolumesAttached[i].DevicePath
}

// blkidNothing is the code of blkid(8) for a device without a file system.
const blkidNothing = 2

// resize expands the file system on a device, as upstream does for a driver without expandfs.
func (e expansion) resize(ctx context.Context, device string) error {
	out, err := e.parts.Run.Run(ctx, nil, "blkid", "-p", "-s", "TYPE", "-o", "value", "--", device)
	if exit := (*command.ExitError)(nil); errors.As(err, &exit) && exit.Code == blkidNothing {
		return nil // mkfs will use the whole device
	}
	if err != nil {
		return fmt.Errorf("cannot find out which file system %s has: %w", device, err)
	}
	switch found := strings.TrimSpace(string(out)); found {
	case "ext3", "ext4":
		_, err = e.parts.Run.Run(ctx, nil, "resize2fs", device)
	case "xfs":
		_, err = e.parts.Run.Run(ctx, nil, "xfs_growfs", "-d", e.target)
	case "btrfs":
		_, err = e.parts.Run.Run(ctx, nil, "btrfs", "filesystem", "resize", "max", e.target)
	default:
		return fmt.Errorf(`cannot expand file system %q on %s: want ext3, ext4, xfs or btrfs, or a driver that has the call expandfs`, found, device)
	}
	return err
}

// endGrowth forgets the sizes of volumes that pod uid had and that no other pod has. One that stays leads to a call too many at the next growth.
func (k *Kind) endGrowth(uid types.UID, had []use) {
	if len(had) == 0 {
		return
	}
	all, err := k.tree.uses(k.host.Platform, "")
	for _, u := range had {
		if err == nil && !slices.ContainsFunc(all, func(other use) bool { return other.name() == u.name() && other.uid != uid }) {
			k.growth.End(u.name())
		}
	}
}
