package csi_test

import (
	"context"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// mortal is the client of a driver whose agent may be killed at a call.
type mortal struct{ d *dying }

func called[Request, Answer any](d *dying, ctx context.Context, do func(context.Context, Request, ...grpc.CallOption) (Answer, error), in Request) (out Answer, err error) {
	err = d.call(func() (err error) { out, err = do(ctx, in); return err })
	return out, err
}

func (m mortal) NodeStageVolume(ctx context.Context, in *pb.NodeStageVolumeRequest, _ ...grpc.CallOption) (*pb.NodeStageVolumeResponse, error) {
	return called(m.d, ctx, m.d.NodeClient.NodeStageVolume, in)
}

func (m mortal) NodeUnstageVolume(ctx context.Context, in *pb.NodeUnstageVolumeRequest, _ ...grpc.CallOption) (*pb.NodeUnstageVolumeResponse, error) {
	return called(m.d, ctx, m.d.NodeClient.NodeUnstageVolume, in)
}

func (m mortal) NodePublishVolume(ctx context.Context, in *pb.NodePublishVolumeRequest, _ ...grpc.CallOption) (*pb.NodePublishVolumeResponse, error) {
	return called(m.d, ctx, m.d.NodeClient.NodePublishVolume, in)
}

func (m mortal) NodeUnpublishVolume(ctx context.Context, in *pb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption) (*pb.NodeUnpublishVolumeResponse, error) {
	return called(m.d, ctx, m.d.NodeClient.NodeUnpublishVolume, in)
}

func (m mortal) NodeGetVolumeStats(ctx context.Context, in *pb.NodeGetVolumeStatsRequest, _ ...grpc.CallOption) (*pb.NodeGetVolumeStatsResponse, error) {
	return called(m.d, ctx, m.d.NodeClient.NodeGetVolumeStats, in)
}

func (m mortal) NodeExpandVolume(ctx context.Context, in *pb.NodeExpandVolumeRequest, _ ...grpc.CallOption) (*pb.NodeExpandVolumeResponse, error) {
	return called(m.d, ctx, m.d.NodeClient.NodeExpandVolume, in)
}

func (m mortal) NodeGetCapabilities(ctx context.Context, in *pb.NodeGetCapabilitiesRequest, _ ...grpc.CallOption) (*pb.NodeGetCapabilitiesResponse, error) {
	return called(m.d, ctx, m.d.NodeClient.NodeGetCapabilities, in)
}

func (m mortal) NodeGetInfo(ctx context.Context, in *pb.NodeGetInfoRequest, _ ...grpc.CallOption) (*pb.NodeGetInfoResponse, error) {
	return called(m.d, ctx, m.d.NodeClient.NodeGetInfo, in)
}
