package csitest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// identity is the identity service of a driver that is always ready.
type identity struct {
	pb.UnimplementedIdentityServer
	name string
}

func (i identity) GetPluginInfo(context.Context, *pb.GetPluginInfoRequest) (*pb.GetPluginInfoResponse, error) {
	return &pb.GetPluginInfoResponse{Name: i.name, VendorVersion: "1"}, nil
}

func (identity) GetPluginCapabilities(context.Context, *pb.GetPluginCapabilitiesRequest) (*pb.GetPluginCapabilitiesResponse, error) {
	return &pb.GetPluginCapabilitiesResponse{}, nil
}

func (identity) Probe(context.Context, *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	return &pb.ProbeResponse{}, nil
}

// service is a Driver as gRPC's server has it.
type service struct {
	pb.UnimplementedNodeServer
	d *Driver
}

func (s service) NodeGetInfo(ctx context.Context, in *pb.NodeGetInfoRequest) (*pb.NodeGetInfoResponse, error) {
	return serve(ctx, s.d, "NodeGetInfo", "", in, func() (*pb.NodeGetInfoResponse, error) {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		return s.d.info, nil
	})
}

func (s service) NodeGetCapabilities(ctx context.Context, in *pb.NodeGetCapabilitiesRequest) (*pb.NodeGetCapabilitiesResponse, error) {
	return serve(ctx, s.d, "NodeGetCapabilities", "", in, func() (*pb.NodeGetCapabilitiesResponse, error) {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		out := &pb.NodeGetCapabilitiesResponse{}
		for _, kind := range s.d.has {
			out.Capabilities = append(out.Capabilities, &pb.NodeServiceCapability{
				Type: &pb.NodeServiceCapability_Rpc{Rpc: &pb.NodeServiceCapability_RPC{Type: kind}},
			})
		}
		return out, nil
	})
}

func (s service) NodeStageVolume(ctx context.Context, in *pb.NodeStageVolumeRequest) (*pb.NodeStageVolumeResponse, error) {
	d, id, path := s.d, in.GetVolumeId(), in.GetStagingTargetPath()
	return serve(ctx, d, "NodeStageVolume", id, in, func() (*pb.NodeStageVolumeResponse, error) {
		v := d.volume(id)
		switch {
		case id == "" || path == "" || in.GetVolumeCapability() == nil:
			return nil, d.wrong(codes.InvalidArgument, "NodeStageVolume lacks volume id, staging path or capability: %v", in)
		case !d.Has(pb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME):
			return nil, d.wrong(codes.Unimplemented, "NodeStageVolume of a driver that does not stage")
		case !isDir(path):
			return nil, d.wrong(codes.Internal, "NodeStageVolume of volume %s: staging path %s is not a directory", id, path)
		case v.Staged != "" && v.Staged != path:
			return nil, d.wrong(codes.FailedPrecondition, "NodeStageVolume of volume %s at %s: it is staged at %s", id, path, v.Staged)
		}
		d.change(func() { v.Staged = path })
		return &pb.NodeStageVolumeResponse{}, nil
	})
}

func (s service) NodeUnstageVolume(ctx context.Context, in *pb.NodeUnstageVolumeRequest) (*pb.NodeUnstageVolumeResponse, error) {
	d, id, path := s.d, in.GetVolumeId(), in.GetStagingTargetPath()
	return serve(ctx, d, "NodeUnstageVolume", id, in, func() (*pb.NodeUnstageVolumeResponse, error) {
		v := d.volume(id)
		switch {
		case id == "" || path == "":
			return nil, d.wrong(codes.InvalidArgument, "NodeUnstageVolume lacks volume id or staging path: %v", in)
		case len(v.Published) > 0:
			return nil, d.wrong(codes.FailedPrecondition, "NodeUnstageVolume of volume %s, which is published at %q", id, v.Published)
		case v.Staged != "" && v.Staged != path:
			return nil, d.wrong(codes.InvalidArgument, "NodeUnstageVolume of volume %s at %s: it is staged at %s", id, path, v.Staged)
		}
		d.change(func() { v.Staged = "" })
		return &pb.NodeUnstageVolumeResponse{}, nil
	})
}

func (s service) NodePublishVolume(ctx context.Context, in *pb.NodePublishVolumeRequest) (*pb.NodePublishVolumeResponse, error) {
	d, id, target := s.d, in.GetVolumeId(), in.GetTargetPath()
	return serve(ctx, d, "NodePublishVolume", id, in, func() (*pb.NodePublishVolumeResponse, error) {
		v := d.volume(id)
		switch stages := d.Has(pb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) && in.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true"; {
		case id == "" || target == "" || in.GetVolumeCapability() == nil:
			return nil, d.wrong(codes.InvalidArgument, "NodePublishVolume lacks volume id, target path or capability: %v", in)
		case stages && v.Staged == "":
			return nil, d.wrong(codes.FailedPrecondition, "NodePublishVolume of volume %s, which is not staged", id)
		case stages && in.GetStagingTargetPath() != v.Staged:
			return nil, d.wrong(codes.InvalidArgument, "NodePublishVolume of volume %s from %s: it is staged at %s", id, in.GetStagingTargetPath(), v.Staged)
		case !isDir(filepath.Dir(target)):
			return nil, d.wrong(codes.Internal, "NodePublishVolume of volume %s: the parent of %s is not a directory", id, target)
		}
		if err := makeTarget(target, in.GetVolumeCapability().GetBlock() != nil); err != nil {
			return nil, d.wrong(codes.Internal, "NodePublishVolume of volume %s: %v", id, err)
		}
		d.change(func() {
			if v.Context = in.GetVolumeContext(); !slices.Contains(v.Published, target) {
				v.Published = append(v.Published, target)
			}
		})
		d.hook(func() func(string, string) { return d.mounted })(id, target)
		return &pb.NodePublishVolumeResponse{}, nil
	})
}

func (s service) NodeUnpublishVolume(ctx context.Context, in *pb.NodeUnpublishVolumeRequest) (*pb.NodeUnpublishVolumeResponse, error) {
	d, id, target := s.d, in.GetVolumeId(), in.GetTargetPath()
	return serve(ctx, d, "NodeUnpublishVolume", id, in, func() (*pb.NodeUnpublishVolumeResponse, error) {
		if id == "" || target == "" {
			return nil, d.wrong(codes.InvalidArgument, "NodeUnpublishVolume lacks volume id or target path: %v", in)
		}
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, status.Errorf(codes.Internal, "cannot remove the target path: %v", err)
		}
		v := d.volume(id)
		d.change(func() { v.Published = slices.DeleteFunc(v.Published, func(p string) bool { return p == target }) })
		d.hook(func() func(string, string) { return d.unmounted })(id, target)
		return &pb.NodeUnpublishVolumeResponse{}, nil
	})
}

func (s service) NodeGetVolumeStats(ctx context.Context, in *pb.NodeGetVolumeStatsRequest) (*pb.NodeGetVolumeStatsResponse, error) {
	d, id, path := s.d, in.GetVolumeId(), in.GetVolumePath()
	return serve(ctx, d, "NodeGetVolumeStats", id, in, func() (*pb.NodeGetVolumeStatsResponse, error) {
		v := d.volume(id)
		switch {
		case !d.Has(pb.NodeServiceCapability_RPC_GET_VOLUME_STATS):
			return nil, d.wrong(codes.Unimplemented, "NodeGetVolumeStats of a driver that has no figures")
		case id == "" || path == "":
			return nil, d.wrong(codes.InvalidArgument, "NodeGetVolumeStats lacks volume id or path: %v", in)
		case v.Staged != path && !slices.Contains(v.Published, path):
			return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", id, path)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return &pb.NodeGetVolumeStatsResponse{Usage: d.usage[id], VolumeCondition: d.condition[id]}, nil
	})
}

func (s service) NodeExpandVolume(ctx context.Context, in *pb.NodeExpandVolumeRequest) (*pb.NodeExpandVolumeResponse, error) {
	d, id, path := s.d, in.GetVolumeId(), in.GetVolumePath()
	return serve(ctx, d, "NodeExpandVolume", id, in, func() (*pb.NodeExpandVolumeResponse, error) {
		v := d.volume(id)
		switch {
		case !d.Has(pb.NodeServiceCapability_RPC_EXPAND_VOLUME):
			return nil, d.wrong(codes.Unimplemented, "NodeExpandVolume of a driver that does not expand")
		case id == "" || path == "":
			return nil, d.wrong(codes.InvalidArgument, "NodeExpandVolume lacks volume id or path: %v", in)
		case v.Staged == "" && len(v.Published) == 0:
			return nil, d.wrong(codes.FailedPrecondition, "NodeExpandVolume of volume %s, which is neither staged nor published", id)
		}
		size := in.GetCapacityRange().GetRequiredBytes()
		d.change(func() { v.Size = size })
		return &pb.NodeExpandVolumeResponse{CapacityBytes: size}, nil
	})
}

// volume is what the driver has of a volume; only the one call that works on it reads it.
func (d *Driver) volume(id string) *Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.volumes[id] == nil {
		d.volumes[id] = &Volume{}
	}
	return d.volumes[id]
}

func (d *Driver) change(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
}

func (d *Driver) hook(which func() func(volume, path string)) func(volume, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return which()
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// makeTarget makes what a volume is mounted on: the driver makes the target path, whose parent the caller made (CSI specification, target_path).
func makeTarget(path string, block bool) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir() == block:
		return &fs.PathError{Op: "publish", Path: path, Err: errors.New("it exists and is of another kind")}
	case err == nil:
		return nil
	case block:
		return os.WriteFile(path, nil, 0o600)
	}
	return os.Mkdir(path, 0o750)
}

// client is a Driver as gRPC's client has it.
type client struct{ d *Driver }

func (c client) NodeStageVolume(ctx context.Context, in *pb.NodeStageVolumeRequest, _ ...grpc.CallOption) (*pb.NodeStageVolumeResponse, error) {
	return service{d: c.d}.NodeStageVolume(ctx, in)
}

func (c client) NodeUnstageVolume(ctx context.Context, in *pb.NodeUnstageVolumeRequest, _ ...grpc.CallOption) (*pb.NodeUnstageVolumeResponse, error) {
	return service{d: c.d}.NodeUnstageVolume(ctx, in)
}

func (c client) NodePublishVolume(ctx context.Context, in *pb.NodePublishVolumeRequest, _ ...grpc.CallOption) (*pb.NodePublishVolumeResponse, error) {
	return service{d: c.d}.NodePublishVolume(ctx, in)
}

func (c client) NodeUnpublishVolume(ctx context.Context, in *pb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption) (*pb.NodeUnpublishVolumeResponse, error) {
	return service{d: c.d}.NodeUnpublishVolume(ctx, in)
}

func (c client) NodeGetVolumeStats(ctx context.Context, in *pb.NodeGetVolumeStatsRequest, _ ...grpc.CallOption) (*pb.NodeGetVolumeStatsResponse, error) {
	return service{d: c.d}.NodeGetVolumeStats(ctx, in)
}

func (c client) NodeExpandVolume(ctx context.Context, in *pb.NodeExpandVolumeRequest, _ ...grpc.CallOption) (*pb.NodeExpandVolumeResponse, error) {
	return service{d: c.d}.NodeExpandVolume(ctx, in)
}

func (c client) NodeGetCapabilities(ctx context.Context, in *pb.NodeGetCapabilitiesRequest, _ ...grpc.CallOption) (*pb.NodeGetCapabilitiesResponse, error) {
	return service{d: c.d}.NodeGetCapabilities(ctx, in)
}

func (c client) NodeGetInfo(ctx context.Context, in *pb.NodeGetInfoRequest, _ ...grpc.CallOption) (*pb.NodeGetInfoResponse, error) {
	return service{d: c.d}.NodeGetInfo(ctx, in)
}

var (
	_ pb.NodeClient = client{}
	_ pb.NodeServer = service{}
)
