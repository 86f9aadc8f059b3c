package csidriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/winkube/winkube/pkg/volume/mount"
)

type node struct {
	pb.UnimplementedNodeServer
	d *Driver
}

func (n node) NodeGetInfo(context.Context, *pb.NodeGetInfoRequest) (*pb.NodeGetInfoResponse, error) {
	out := &pb.NodeGetInfoResponse{NodeId: n.d.cfg.NodeID, MaxVolumesPerNode: n.d.cfg.Most}
	if len(n.d.cfg.Topology) > 0 {
		out.AccessibleTopology = &pb.Topology{Segments: n.d.cfg.Topology}
	}
	return out, nil
}

func (n node) NodeGetCapabilities(context.Context, *pb.NodeGetCapabilitiesRequest) (*pb.NodeGetCapabilitiesResponse, error) {
	out := &pb.NodeGetCapabilitiesResponse{}
	for _, kind := range []pb.NodeServiceCapability_RPC_Type{
		pb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, pb.NodeServiceCapability_RPC_GET_VOLUME_STATS, pb.NodeServiceCapability_RPC_EXPAND_VOLUME,
		pb.NodeServiceCapability_RPC_VOLUME_CONDITION, pb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &pb.NodeServiceCapability{
			Type: &pb.NodeServiceCapability_Rpc{Rpc: &pb.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return out, nil
}

// begin checks what every call about a volume has, and locks the volume.
func (n node) begin(id, path string) (release func(), err error) {
	if id == "" || path == "" {
		return nil, status.Error(codes.InvalidArgument, "want volume_id and a path")
	}
	return n.d.locks.take(id)
}

// known is a volume that exists.
func (n node) known(id string) (thing, error) {
	t, ok, err := n.d.store.get(volumes, id)
	if err != nil || !ok {
		return t, cmp.Or(err, status.Errorf(codes.NotFound, "no volume %q", id))
	}
	return t, nil
}

func (n node) NodeStageVolume(ctx context.Context, in *pb.NodeStageVolumeRequest) (*pb.NodeStageVolumeResponse, error) {
	release, err := n.begin(in.GetVolumeId(), in.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer release()
	if _, err := asksBlock(in.GetVolumeCapability()); err != nil {
		return nil, err
	}
	t, err := n.known(in.GetVolumeId())
	if err == nil {
		err = t.check(in.GetVolumeCapability())
	}
	if err != nil {
		return nil, err
	}
	if !t.usable(n.d.cfg.Topology) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s can be used in %v, this node is %v", t.ID, t.Accessible, n.d.cfg.Topology)
	}
	if t.Block {
		return &pb.NodeStageVolumeResponse{}, n.attach(t.ID)
	}
	if n.d.proxy != nil {
		return &pb.NodeStageVolumeResponse{}, n.d.proxy.stage(ctx, t.ID, in.GetStagingTargetPath())
	}
	return &pb.NodeStageVolumeResponse{}, n.bind(n.d.store.content(volumes, in.GetVolumeId()), in.GetStagingTargetPath())
}

// bind mounts a directory or a device at a target, unless something is mounted there.
func (n node) bind(source, target string) error {
	if mounted, err := n.d.mounts.IsMount(target); err != nil || mounted {
		return err
	}
	if err := makeTarget(source, target); err != nil {
		return err
	}
	file, err := os.OpenFile(source, mount.OpenPath, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	return n.d.mounts.Bind(file, target)
}

// makeTarget makes what source can be mounted at.
func makeTarget(source, target string) error {
	if fi, err := os.Stat(source); err != nil || fi.IsDir() {
		return cmp.Or(err, os.MkdirAll(target, 0o750))
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

func (n node) NodeUnstageVolume(ctx context.Context, in *pb.NodeUnstageVolumeRequest) (*pb.NodeUnstageVolumeResponse, error) {
	release, err := n.begin(in.GetVolumeId(), in.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer release()
	if t, ok, err := n.d.store.get(volumes, in.GetVolumeId()); err != nil || ok && t.Block {
		return &pb.NodeUnstageVolumeResponse{}, cmp.Or(err, n.detach(t.ID))
	}
	if n.d.proxy != nil {
		return &pb.NodeUnstageVolumeResponse{}, n.d.proxy.unstage(ctx, in.GetVolumeId(), in.GetStagingTargetPath())
	}
	return &pb.NodeUnstageVolumeResponse{}, n.unmount(in.GetStagingTargetPath())
}

// unmount removes every mount from target.
func (n node) unmount(target string) error {
	for {
		mounted, err := n.d.mounts.IsMount(target)
		if err != nil || !mounted {
			return err
		}
		if err := n.d.mounts.Unmount(target); err != nil {
			return err
		}
	}
}

func (n node) NodePublishVolume(ctx context.Context, in *pb.NodePublishVolumeRequest) (*pb.NodePublishVolumeResponse, error) {
	id, target := in.GetVolumeId(), in.GetTargetPath()
	release, err := n.begin(id, target)
	if err != nil {
		return nil, err
	}
	defer release()
	if _, err := asksBlock(in.GetVolumeCapability()); err != nil {
		return nil, err
	}
	source := in.GetStagingTargetPath()
	if in.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
		if err := n.d.store.put(volumes, thing{ID: id, Name: id, Size: defaultSize, Inline: true}, ""); err != nil {
			return nil, err
		}
		source = n.d.store.content(volumes, id)
	}
	t, err := n.known(id)
	if err == nil {
		err = t.check(in.GetVolumeCapability())
	}
	if err != nil {
		return nil, err
	}
	if source == "" {
		return nil, status.Error(codes.FailedPrecondition, "want staging_target_path")
	}
	if t.Block {
		if source, err = n.device(id); err != nil || source == "" {
			return nil, cmp.Or(err, status.Errorf(codes.FailedPrecondition, "volume %s is not staged", id))
		}
	}
	if n.d.proxy != nil {
		return &pb.NodePublishVolumeResponse{}, n.d.proxy.publish(ctx, source, target)
	}
	if err := n.bind(source, target); err != nil {
		return nil, err
	}
	if in.GetReadonly() && !t.Block && !n.d.cfg.Links { // of a device the container's own rules say so
		if err := remountReadOnly(target); err != nil {
			return nil, fmt.Errorf("cannot make %s read-only: %w", target, err)
		}
	}
	return &pb.NodePublishVolumeResponse{}, nil
}

func (n node) NodeUnpublishVolume(_ context.Context, in *pb.NodeUnpublishVolumeRequest) (*pb.NodeUnpublishVolumeResponse, error) {
	release, err := n.begin(in.GetVolumeId(), in.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer release()
	if err := n.unmount(in.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := os.Remove(in.GetTargetPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	switch t, ok, err := n.d.store.get(volumes, in.GetVolumeId()); {
	case err != nil:
		return nil, err
	case !ok || t.Inline: // of one that does not exist a kill may have left the files
		return &pb.NodeUnpublishVolumeResponse{}, n.d.store.remove(volumes, in.GetVolumeId())
	}
	return &pb.NodeUnpublishVolumeResponse{}, nil
}

func (n node) NodeGetVolumeStats(_ context.Context, in *pb.NodeGetVolumeStatsRequest) (*pb.NodeGetVolumeStatsResponse, error) {
	release, err := n.begin(in.GetVolumeId(), in.GetVolumePath())
	if err != nil {
		return nil, err
	}
	defer release()
	t, err := n.at(in.GetVolumeId(), in.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if t.Block {
		return &pb.NodeGetVolumeStatsResponse{Usage: []*pb.VolumeUsage{{Unit: pb.VolumeUsage_BYTES, Total: t.Size}}, VolumeCondition: &pb.VolumeCondition{Message: "the device is there"}}, nil
	}
	files, bytes := usage(n.d.store.content(volumes, t.ID))
	out := &pb.NodeGetVolumeStatsResponse{
		Usage: []*pb.VolumeUsage{
			{Unit: pb.VolumeUsage_BYTES, Total: t.Size, Used: bytes, Available: max(0, t.Size-bytes)},
			{Unit: pb.VolumeUsage_INODES, Total: 1 << 20, Used: files, Available: max(0, 1<<20-files)},
		},
		VolumeCondition: &pb.VolumeCondition{Message: "the directory is there"},
	}
	if message, err := os.ReadFile(n.d.store.path(volumes, t.ID, "abnormal")); err == nil { // a test wants it
		out.VolumeCondition = &pb.VolumeCondition{Abnormal: true, Message: string(message)}
	}
	return out, nil
}

// at is a volume that is mounted at path.
func (n node) at(id, path string) (thing, error) {
	t, err := n.known(id)
	if err != nil {
		return t, err
	}
	mounted, err := n.d.mounts.IsMount(path)
	if err != nil || !mounted {
		return t, cmp.Or(err, status.Errorf(codes.NotFound, "volume %s is not mounted at %s", id, path))
	}
	return t, nil
}

func (n node) NodeExpandVolume(_ context.Context, in *pb.NodeExpandVolumeRequest) (*pb.NodeExpandVolumeResponse, error) {
	release, err := n.begin(in.GetVolumeId(), in.GetVolumePath())
	if err != nil {
		return nil, err
	}
	defer release()
	t, err := n.at(in.GetVolumeId(), in.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if t.Block {
		device, err := n.device(t.ID)
		if err == nil {
			_, err = losetup("--set-capacity", device)
		}
		if err != nil {
			return nil, err
		}
	}
	return &pb.NodeExpandVolumeResponse{CapacityBytes: t.Size}, nil
}
