package csi

import (
	"context"
	"fmt"
	"slices"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/grow"
)

// growTime covers reading the claim, waiting for the volume's turn, and the call.
const growTime = 2 * callTime

// growSoon makes the driver expand v on this node if its claim has grown.
func (k *Kind) growSoon(v volume.Volume, d described, at place) {
	if v.Claim == "" {
		return
	}
	driver, err := k.parts.Drivers.Driver(d.driver)
	if err != nil || !driver.Has(pb.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return
	}
	k.growth.Soon(grow.Volume[key]{
		Volume: v, Key: d.key, Spec: d.spec, Driver: d.driver, Target: at.target,
		Expand: func(ctx context.Context, step grow.Step) error {
			if d.migrated {
				ctx = csi.Migrated(ctx)
			}
			return k.expand(ctx, v, d, at, driver, step)
		},
	})
}

// expand has the driver expand the volume.
func (k *Kind) expand(ctx context.Context, v volume.Volume, d described, at place, driver csi.Driver, step grow.Step) error {
	pv, _, err := translated(step.PV)
	switch {
	case err != nil:
		return err
	case pv.Spec.CSI.VolumeHandle != d.handle:
		return grow.ErrNothing
	}
	secrets, err := k.secret(ctx, "NodeExpandSecretRef", pv.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	w := &work{kind: k, driver: driver, d: d, at: at, uid: v.Pod.UID, v: &v}
	if w.held, err = k.turns.Enter(ctx, d.key); err != nil {
		return err
	}
	defer w.held.Release()
	if uses, err := k.tree.uses(v.Pod.UID, d.key, d.spec, d.block); err != nil {
		return err
	} else if !uses {
		return grow.ErrNothing
	}
	request := &pb.NodeExpandVolumeRequest{
		VolumeId: d.handle, VolumePath: at.target, CapacityRange: &pb.CapacityRange{RequiredBytes: step.To.Value()}, Secrets: secrets,
		VolumeCapability: capability(d, nil, w.multiWriter()),
	}
	if w.stages() {
		request.StagingTargetPath = at.staging
	}
	if err := step.Begin(ctx); err != nil {
		return err
	}
	err = w.held.Do(ctx, func(ctx context.Context) error {
		_, err := driver.Node().NodeExpandVolume(ctx, request)
		return err
	})
	return failure(err)
}

// failure is what a driver's error says of an expansion; nil: there was none. It is pure.
func failure(err error) error {
	if err == nil {
		return nil
	}
	code := status.Code(err)
	return &grow.Failure{
		Err:        fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err), //nolint:staticcheck // upstream's words
		Final:      final(err),
		Infeasible: slices.Contains([]codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound}, code),
		Quiet:      code == codes.FailedPrecondition,
	}
}
