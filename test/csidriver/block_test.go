package csidriver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/winkube/winkube/test/csidriver"
)

func device() *pb.VolumeCapability {
	return &pb.VolumeCapability{AccessType: &pb.VolumeCapability_Block{Block: &pb.VolumeCapability_BlockVolume{}},
		AccessMode: &pb.VolumeCapability_AccessMode{Mode: pb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
}

// TestBlockLife: a block volume is a real device on the node; what is written to it is in its copy, and it grows while it is used.
func TestBlockLife(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("block devices need root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("this machine has no loop devices: %v", err)
	}
	root := shortRoot(t)
	connection := serves(t, root, "n1")
	controller, node := pb.NewControllerClient(connection), pb.NewNodeClient(connection)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create := func(name string, size int64, from *pb.VolumeContentSource, as *pb.VolumeCapability) (string, error) {
		made, err := controller.CreateVolume(ctx, &pb.CreateVolumeRequest{Name: name, VolumeCapabilities: []*pb.VolumeCapability{as},
			CapacityRange: &pb.CapacityRange{RequiredBytes: size}, VolumeContentSource: from})
		return made.GetVolume().GetVolumeId(), err
	}
	stage, target := filepath.Join(root, "stage"), filepath.Join(root, "publish", "target")
	publish := func(id string) {
		t.Helper()
		for range 2 {
			must(node.NodeStageVolume(ctx, &pb.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: stage, VolumeCapability: device()}))
			must(node.NodePublishVolume(ctx, &pb.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: stage, TargetPath: target, VolumeCapability: device()}))
		}
	}
	end := func(id string) {
		t.Helper()
		for range 2 {
			must(node.NodeUnpublishVolume(ctx, &pb.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}))
			must(node.NodeUnstageVolume(ctx, &pb.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: stage}))
		}
	}
	size := func() int64 {
		t.Helper()
		f, err := os.Open(target)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n, err := f.Seek(0, 2)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first, err := create("first", 1<<20, nil, device())
	must(nil, err)
	if _, err := node.NodeStageVolume(ctx, &pb.NodeStageVolumeRequest{VolumeId: first, StagingTargetPath: stage, VolumeCapability: mounted()}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("mounting a block volume: %v", err)
	}
	publish(first)
	fi, err := os.Stat(target)
	if err != nil || fi.Mode()&os.ModeDevice == 0 || fi.Mode()&os.ModeCharDevice != 0 {
		t.Fatalf("published %v, %v; want a block device", fi.Mode(), err)
	}
	must(nil, os.WriteFile(target, []byte("written"), 0o600))
	must(controller.ControllerExpandVolume(ctx, &pb.ControllerExpandVolumeRequest{VolumeId: first, CapacityRange: &pb.CapacityRange{RequiredBytes: 3 << 20}}))
	must(node.NodeExpandVolume(ctx, &pb.NodeExpandVolumeRequest{VolumeId: first, VolumePath: target}))
	if got := size(); got != 3<<20 {
		t.Errorf("the device has %d bytes after it was expanded to %d", got, 3<<20)
	}
	if stats, err := node.NodeGetVolumeStats(ctx, &pb.NodeGetVolumeStatsRequest{VolumeId: first, VolumePath: target}); err != nil || stats.GetUsage()[0].GetTotal() != 3<<20 {
		t.Errorf("figures %v, %v", stats, err)
	}
	end(first)
	from := &pb.VolumeContentSource{Type: &pb.VolumeContentSource_Volume{Volume: &pb.VolumeContentSource_VolumeSource{VolumeId: first}}}
	if _, err := create("file", 3<<20, from, mounted()); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a directory from a block volume: %v", err)
	}
	copied, err := create("copy", 4<<20, from, device())
	must(nil, err)
	publish(copied)
	f, err := os.Open(target)
	must(nil, err)
	begin := make([]byte, 7)
	_, err = f.Read(begin)
	must(nil, err)
	must(nil, f.Close())
	if got := size(); string(begin) != "written" || got != 4<<20 {
		t.Errorf("the copy begins with %q and has %d bytes, want written and %d", begin, got, 4<<20)
	}
	end(copied)
	for _, id := range []string{first, copied} {
		must(controller.DeleteVolume(ctx, &pb.DeleteVolumeRequest{VolumeId: id}))
	}
	if left, err := (csidriver.Outside{Data: filepath.Join(root, "data")}).Volumes(); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(nil, err)
	for _, d := range devices {
		if name, err := os.ReadFile(d); err == nil && strings.HasPrefix(string(name), root) {
			t.Errorf("device %s of %s is left", d, name)
		}
	}
}
