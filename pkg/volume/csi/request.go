package csi

import (
	"maps"
	"strconv"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

// inputs are what calls need beside the volume itself.
type inputs struct {
	attached       map[string]string // of the VolumeAttachment's status
	context        map[string]string // added to the volume's attributes for NodePublish
	stageSecrets   map[string]string
	publishSecrets map[string]string
	group          *int64 // given to the driver, which applies it; nil: it does not
}

// capability returns how the volume is used. multiWriter: the driver has SINGLE_NODE_MULTI_WRITER and distinguishes pods of one node. It is pure,
// like all requests.
func capability(d described, group *int64, multiWriter bool) *pb.VolumeCapability {
	c := &pb.VolumeCapability{AccessMode: &pb.VolumeCapability_AccessMode{Mode: accessMode(d.mode, multiWriter)}}
	if d.block {
		c.AccessType = &pb.VolumeCapability_Block{Block: &pb.VolumeCapability_BlockVolume{}}
		return c
	}
	m := &pb.VolumeCapability_MountVolume{FsType: d.fsType, MountFlags: d.options}
	if group != nil {
		m.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	c.AccessType = &pb.VolumeCapability_Mount{Mount: m}
	return c
}

func accessMode(mode v1.PersistentVolumeAccessMode, multiWriter bool) pb.VolumeCapability_AccessMode_Mode {
	switch mode {
	case v1.ReadOnlyMany:
		return pb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case v1.ReadWriteMany:
		return pb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case v1.ReadWriteOncePod:
		if multiWriter {
			return pb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
		return pb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case v1.ReadWriteOnce:
		if multiWriter {
			return pb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
		return pb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return pb.VolumeCapability_AccessMode_UNKNOWN
}

func stageRequest(d described, in inputs, path string, multiWriter bool) *pb.NodeStageVolumeRequest {
	return &pb.NodeStageVolumeRequest{
		VolumeId: d.handle, PublishContext: in.attached, StagingTargetPath: path, VolumeCapability: capability(d, in.group, multiWriter),
		Secrets: in.stageSecrets, VolumeContext: d.attributes,
	}
}

// publishRequest has a staging path only when the driver stages the volume.
func publishRequest(d described, in inputs, staged, target string, multiWriter bool) *pb.NodePublishVolumeRequest {
	return &pb.NodePublishVolumeRequest{
		VolumeId: d.handle, PublishContext: in.attached, StagingTargetPath: staged, TargetPath: target, Readonly: d.readOnly,
		VolumeCapability: capability(d, in.group, multiWriter), Secrets: in.publishSecrets, VolumeContext: merged(d.attributes, in.context),
	}
}

// merged returns a with b, which takes precedence. It changes neither.
func merged(a, b map[string]string) map[string]string {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// final reports that a call has ended with err and that the driver does not continue it (gRPC's status codes; the CSI specification's ABORTED).
func final(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}
