package csidriver

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Sizes of volumes. The driver does not enforce them: they are what it reports.
const (
	defaultSize = 1 << 30
	largestSize = 1 << 40
)

type controller struct {
	pb.UnimplementedControllerServer
	d *Driver
}

func (c controller) ControllerGetCapabilities(context.Context, *pb.ControllerGetCapabilitiesRequest) (*pb.ControllerGetCapabilitiesResponse, error) {
	out := &pb.ControllerGetCapabilitiesResponse{}
	for _, kind := range []pb.ControllerServiceCapability_RPC_Type{
		pb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, pb.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		pb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, pb.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		pb.ControllerServiceCapability_RPC_CLONE_VOLUME, pb.ControllerServiceCapability_RPC_LIST_VOLUMES,
		pb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &pb.ControllerServiceCapability{
			Type: &pb.ControllerServiceCapability_Rpc{Rpc: &pb.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return out, nil
}

// asksBlock reports whether capabilities ask for a block device, or what is wrong with them.
func asksBlock(all ...*pb.VolumeCapability) (bool, error) {
	if len(all) == 0 {
		return false, status.Error(codes.InvalidArgument, "want volume_capability")
	}
	blocks := 0
	for _, one := range all {
		if one == nil || one.GetAccessType() == nil && one.GetAccessMode() == nil {
			return false, status.Error(codes.InvalidArgument, "want volume_capability with an access type and mode")
		}
		if one.GetBlock() != nil {
			blocks++
		}
	}
	if blocks > 0 && blocks < len(all) {
		return false, status.Error(codes.InvalidArgument, "want either block volumes or mounted ones: a volume cannot be both")
	}
	return blocks > 0, nil
}

// check says why the volume cannot be used as capabilities ask.
func (t thing) check(all ...*pb.VolumeCapability) error {
	block, err := asksBlock(all...)
	if err == nil && block != t.Block {
		err = status.Errorf(codes.InvalidArgument, "volume %s: block is %t, want access by it", t.ID, t.Block)
	}
	return err
}

// sizeOf is the size that a range asks for.
func sizeOf(r *pb.CapacityRange, least int64) (int64, error) {
	size := max(cmp.Or(r.GetRequiredBytes(), min(cmp.Or(r.GetLimitBytes(), defaultSize), defaultSize)), least)
	if size > largestSize || r.GetLimitBytes() > 0 && size > r.GetLimitBytes() {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are not possible", size)
	}
	return size, nil
}

func (c controller) CreateVolume(_ context.Context, in *pb.CreateVolumeRequest) (*pb.CreateVolumeResponse, error) {
	if in.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "want name")
	}
	block, err := asksBlock(in.GetVolumeCapabilities()...)
	if err != nil {
		return nil, err
	}
	id := idOf(in.GetName())
	release, err := c.d.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	from, source, least, err := c.source(in.GetVolumeContentSource(), block)
	if err != nil {
		return nil, err
	}
	size, err := sizeOf(in.GetCapacityRange(), least)
	if err != nil {
		return nil, err
	}
	have, ok, err := c.d.store.get(volumes, id)
	switch {
	case err != nil:
		return nil, err
	case ok && (have.Size < in.GetCapacityRange().GetRequiredBytes() || have.Source != source ||
		in.GetCapacityRange().GetLimitBytes() > 0 && have.Size > in.GetCapacityRange().GetLimitBytes()):
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with another size or source", in.GetName())
	case !ok:
		have = thing{ID: id, Name: in.GetName(), Size: size, Source: source, Block: block, Accessible: c.accessible(in)}
		if err := c.d.store.put(volumes, have, from); err != nil {
			return nil, err
		}
	}
	out := &pb.Volume{VolumeId: id, CapacityBytes: have.Size, ContentSource: in.GetVolumeContentSource(), VolumeContext: in.GetParameters()}
	for _, segments := range have.Accessible {
		out.AccessibleTopology = append(out.AccessibleTopology, &pb.Topology{Segments: segments})
	}
	return &pb.CreateVolumeResponse{Volume: out}, nil
}

// scopeParameter is a parameter of a StorageClass: "node" makes volumes that only one node can use, like local disks.
// Others can be used in every topology that the caller accepts.
const scopeParameter = "scope"

// accessible is where a new volume can be used; empty: everywhere.
func (c controller) accessible(in *pb.CreateVolumeRequest) (out []map[string]string) {
	if len(c.d.cfg.Topology) == 0 {
		return nil
	}
	wanted := in.GetAccessibilityRequirements()
	all := wanted.GetRequisite()
	if oneNode := in.GetParameters()[scopeParameter] == "node"; oneNode || len(all) == 0 {
		all = append(slices.Clone(wanted.GetPreferred()), all...)
		if oneNode && len(all) > 0 {
			all = all[:1]
		}
	}
	for _, topology := range all {
		out = append(out, topology.GetSegments())
	}
	if len(out) == 0 {
		out = append(out, c.d.cfg.Topology)
	}
	return out
}

// source is where a volume's first content is, what is noted of that, and how small the volume can be.
func (c controller) source(of *pb.VolumeContentSource, block bool) (from, note string, size int64, err error) {
	kind, id := snapshots, of.GetSnapshot().GetSnapshotId()
	if of.GetVolume() != nil {
		kind, id = volumes, of.GetVolume().GetVolumeId()
	}
	if of == nil {
		return "", "", 0, nil
	}
	t, ok, err := c.d.store.get(kind, id)
	if err != nil || !ok {
		return "", "", 0, cmp.Or(err, status.Errorf(codes.NotFound, "none of the %s is %q", kind, id))
	}
	if t.Block != block {
		return "", "", 0, status.Errorf(codes.InvalidArgument, "%s %s: block is %t; want the same of the copy", kind, id, t.Block)
	}
	return c.d.store.content(kind, id), kind + " " + id, t.Size, nil
}

func (c controller) DeleteVolume(_ context.Context, in *pb.DeleteVolumeRequest) (*pb.DeleteVolumeResponse, error) {
	id := in.GetVolumeId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "want volume_id")
	}
	release, err := c.d.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	return &pb.DeleteVolumeResponse{}, c.d.store.remove(volumes, id)
}

func (c controller) ValidateVolumeCapabilities(_ context.Context, in *pb.ValidateVolumeCapabilitiesRequest) (*pb.ValidateVolumeCapabilitiesResponse, error) {
	if in.GetVolumeId() == "" || len(in.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "want volume_id and volume_capabilities")
	}
	t, ok, err := c.d.store.get(volumes, in.GetVolumeId())
	if err != nil || !ok {
		return nil, cmp.Or(err, status.Errorf(codes.NotFound, "no volume %q", in.GetVolumeId()))
	}
	if err := t.check(in.GetVolumeCapabilities()...); err != nil {
		return &pb.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &pb.ValidateVolumeCapabilitiesResponse{Confirmed: &pb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: in.GetVolumeCapabilities(), VolumeContext: in.GetVolumeContext(), Parameters: in.GetParameters(),
	}}, nil
}

func (c controller) ListVolumes(_ context.Context, in *pb.ListVolumesRequest) (*pb.ListVolumesResponse, error) {
	all, err := c.d.store.all(volumes)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(t thing) bool { return t.Inline })
	page, next, err := cut(all, in.GetStartingToken(), in.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &pb.ListVolumesResponse{NextToken: next}
	for _, t := range page {
		out.Entries = append(out.Entries, &pb.ListVolumesResponse_Entry{Volume: &pb.Volume{VolumeId: t.ID, CapacityBytes: t.Size}})
	}
	return out, nil
}

// cut is a page of a list. The token is the number of its first entry.
func cut(all []thing, token string, most int32) (page []thing, next string, err error) {
	first := 0
	if token != "" {
		if first, err = strconv.Atoi(token); err != nil || first < 0 || first > len(all) {
			return nil, "", status.Errorf(codes.Aborted, "starting_token %q is none of ours", token)
		}
	}
	last := len(all)
	if most > 0 && first+int(most) < last {
		last = first + int(most)
		next = strconv.Itoa(last)
	}
	return all[first:last], next, nil
}

func (c controller) ControllerExpandVolume(_ context.Context, in *pb.ControllerExpandVolumeRequest) (*pb.ControllerExpandVolumeResponse, error) {
	id := in.GetVolumeId()
	if id == "" || in.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "want volume_id and capacity_range")
	}
	release, err := c.d.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	t, ok, err := c.d.store.get(volumes, id)
	if err != nil || !ok {
		return nil, cmp.Or(err, status.Errorf(codes.NotFound, "no volume %q", id))
	}
	size, err := sizeOf(in.GetCapacityRange(), t.Size)
	if err != nil {
		return nil, err
	}
	t.Size = size
	if err := c.d.store.put(volumes, t, ""); err != nil {
		return nil, err
	}
	return &pb.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

func (c controller) CreateSnapshot(_ context.Context, in *pb.CreateSnapshotRequest) (*pb.CreateSnapshotResponse, error) {
	if in.GetName() == "" || in.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "want name and source_volume_id")
	}
	id := idOf(in.GetName())
	release, err := c.d.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	have, ok, err := c.d.store.get(snapshots, id)
	switch {
	case err != nil:
		return nil, err
	case ok && have.Source != in.GetSourceVolumeId():
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %s exists, of volume %s", in.GetName(), have.Source)
	case !ok:
		of, ok, err := c.d.store.get(volumes, in.GetSourceVolumeId())
		if err != nil || !ok {
			return nil, cmp.Or(err, status.Errorf(codes.NotFound, "no volume %q", in.GetSourceVolumeId()))
		}
		have = thing{ID: id, Name: in.GetName(), Size: of.Size, Source: of.ID, Block: of.Block, Created: time.Now()}
		if err := c.d.store.put(snapshots, have, c.d.store.content(volumes, of.ID)); err != nil {
			return nil, err
		}
	}
	return &pb.CreateSnapshotResponse{Snapshot: have.snapshot()}, nil
}

func (t thing) snapshot() *pb.Snapshot {
	return &pb.Snapshot{SnapshotId: t.ID, SourceVolumeId: t.Source, SizeBytes: t.Size, ReadyToUse: true, CreationTime: timestamppb.New(t.Created)}
}

func (c controller) DeleteSnapshot(_ context.Context, in *pb.DeleteSnapshotRequest) (*pb.DeleteSnapshotResponse, error) {
	id := in.GetSnapshotId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "want snapshot_id")
	}
	release, err := c.d.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	return &pb.DeleteSnapshotResponse{}, c.d.store.remove(snapshots, id)
}

func (c controller) ListSnapshots(_ context.Context, in *pb.ListSnapshotsRequest) (*pb.ListSnapshotsResponse, error) {
	all, err := c.d.store.all(snapshots)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(t thing) bool {
		return in.GetSnapshotId() != "" && t.ID != in.GetSnapshotId() || in.GetSourceVolumeId() != "" && t.Source != in.GetSourceVolumeId()
	})
	page, next, err := cut(all, in.GetStartingToken(), in.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &pb.ListSnapshotsResponse{NextToken: next}
	for _, t := range page {
		out.Entries = append(out.Entries, &pb.ListSnapshotsResponse_Entry{Snapshot: t.snapshot()})
	}
	return out, nil
}
