package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/turns"
)

// Usage implements volume.Kind. A driver with GET_VOLUME_STATS measures its volumes; without it the kernel measures file systems, and devices count
// as nothing.
func (k *Kind) Usage(v volume.Volume) (disk.Place, bool, error) {
	d, err := describe(v)
	if err != nil {
		return disk.Place{}, false, err
	}
	at := k.tree.at(v.Pod.UID, d.key, d.spec, d.block)
	if made, err := v.Made(); err != nil || !made || !at.hasRecord() {
		return disk.Place{}, false, err // not prepared yet, or undone
	}
	place := disk.Place{Path: at.target, Own: true}
	if driver, err := k.parts.Drivers.Driver(d.driver); err != nil || driver.Has(pb.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		// A missing driver may be back soon: until then its last figures are better than those of the file system that it uses.
		place.Source = source{kind: k, key: d.key, path: place.Path, uid: v.Pod.UID, spec: d.spec, block: d.block, migrated: d.migrated}
		return place, true, nil
	}
	return place, !d.block, nil
}

// source is a volume that its driver measures. It implements disk.Source.
type source struct {
	kind  *Kind
	key   key
	path  string
	uid   types.UID // the pod
	spec  string
	block bool

	migrated bool
}

// Program implements disk.Source.
func (s source) Program() string { return "CSI driver " + s.key.driver }

// Volume implements disk.Source. All pods of a volume share its figures.
func (s source) Volume() string { return s.key.handle }

// Measure implements disk.Source. It does not wait for other work on the volume, and gives way to it. If the pod no longer has the volume, the
// driver is not called: it would report that there is none, although other pods may have it.
func (s source) Measure(ctx context.Context) (host.Disk, error) {
	driver, err := s.kind.parts.Drivers.Driver(s.key.driver)
	if err != nil {
		return host.Disk{}, err
	}
	if !driver.Has(pb.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return host.Disk{}, fmt.Errorf("CSI driver %s has no figures of volumes: %w", s.key.driver, fs.ErrNotExist)
	}
	ctx, leave, idle := s.kind.turns.EnterIdle(ctx, s.key)
	if !idle {
		return host.Disk{}, disk.ErrBusy
	}
	defer leave()
	if uses, err := s.kind.tree.uses(s.uid, s.key, s.spec, s.block); err != nil || !uses {
		return host.Disk{}, errors.Join(disk.ErrBusy, err)
	}
	if s.migrated {
		ctx = csi.Migrated(ctx)
	}
	answer, err := driver.Node().NodeGetVolumeStats(ctx, &pb.NodeGetVolumeStatsRequest{VolumeId: s.key.handle, VolumePath: s.path})
	switch {
	case errors.Is(context.Cause(ctx), turns.ErrWanted):
		return host.Disk{}, disk.ErrBusy
	case status.Code(err) == codes.NotFound:
		s.setHealth(nil)
		return host.Disk{}, fmt.Errorf("NodeGetVolumeStats: %w: %w", fs.ErrNotExist, err)
	case err != nil:
		return host.Disk{}, fmt.Errorf("NodeGetVolumeStats: %w", err)
	}
	var health *disk.Health
	if driver.Has(pb.NodeServiceCapability_RPC_VOLUME_CONDITION) {
		health = &disk.Health{Abnormal: answer.GetVolumeCondition().GetAbnormal(), Message: answer.GetVolumeCondition().GetMessage()}
	}
	s.setHealth(health)
	return figures(answer.GetUsage(), health != nil)
}

// Health implements disk.Source.
func (s source) Health() *disk.Health {
	s.kind.mu.Lock()
	defer s.kind.mu.Unlock()
	return s.kind.health[s.key]
}

func (s source) setHealth(h *disk.Health) {
	s.kind.mu.Lock()
	defer s.kind.mu.Unlock()
	if h == nil {
		delete(s.kind.health, s.key)
	} else {
		s.kind.health[s.key] = h
	}
}

// figures returns the figures in a driver's answer. As in upstream, a driver that reports the volume's health may omit them. It is pure.
func figures(usage []*pb.VolumeUsage, health bool) (d host.Disk, err error) {
	if len(usage) == 0 && !health {
		return d, errors.New("failed to get usage from response. usage is nil")
	}
	for _, u := range usage {
		total, used, free := uint64(max(0, u.GetTotal())), uint64(max(0, u.GetUsed())), uint64(max(0, u.GetAvailable()))
		switch u.GetUnit() {
		case pb.VolumeUsage_BYTES:
			d.Capacity, d.Used, d.Available = total, used, free
		case pb.VolumeUsage_INODES:
			d.Inodes, d.InodesUsed, d.InodesFree = total, used, free
		}
	}
	return d, nil
}
