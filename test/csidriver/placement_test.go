package csidriver_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/winkube/winkube/test/csidriver"
)

const nodeKey = "x.test/node"

// serves runs a driver on a node until the test ends. Drivers with the same data are one driver on several nodes.
func serves(t *testing.T, root, node string) *grpc.ClientConn {
	t.Helper()
	socket := filepath.Join(root, node+".sock")
	d, err := csidriver.New(csidriver.Config{Name: "x.test", NodeID: node, Endpoint: socket, Data: filepath.Join(root, "data"), Topology: map[string]string{nodeKey: node}})
	if err != nil {
		t.Fatal(err)
	}
	(&running{t: t}).run(d.Run)
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))) // the driver has only begun to start
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

func shortRoot(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("", "csi") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	return root
}

func mounted() *pb.VolumeCapability {
	return &pb.VolumeCapability{AccessType: &pb.VolumeCapability_Mount{Mount: &pb.VolumeCapability_MountVolume{}},
		AccessMode: &pb.VolumeCapability_AccessMode{Mode: pb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
}

// TestPlacement: a controller places volumes as the provisioner wants, says so again when asked again, and nodes refuse
// volumes of other nodes.
func TestPlacement(t *testing.T) {
	root := shortRoot(t)
	controller := pb.NewControllerClient(serves(t, root, "control"))
	n2 := pb.NewNodeClient(serves(t, root, "n2"))
	at := func(nodes ...string) (out []*pb.Topology) {
		for _, node := range nodes {
			out = append(out, &pb.Topology{Segments: map[string]string{nodeKey: node}})
		}
		return out
	}
	wait := grpc.WaitForReady(true)
	for _, test := range []struct {
		name   string
		scope  string
		wanted *pb.TopologyRequirement
		want   string
		stage  codes.Code // on n2; Internal: the test may not mount
	}{
		{"first-preferred", "node", &pb.TopologyRequirement{Requisite: at("n1", "n2"), Preferred: at("n2", "n1")}, "[n2]", codes.OK},
		{"other-node", "node", &pb.TopologyRequirement{Requisite: at("n1", "n2"), Preferred: at("n1", "n2")}, "[n1]", codes.FailedPrecondition},
		{"only-requisite", "node", &pb.TopologyRequirement{Requisite: at("n1", "n2")}, "[n1]", codes.FailedPrecondition},
		{"shared", "", &pb.TopologyRequirement{Requisite: at("n1", "n2"), Preferred: at("n1", "n2")}, "[n1 n2]", codes.OK},
		{"allowed", "", &pb.TopologyRequirement{Requisite: at("n1"), Preferred: at("n1")}, "[n1]", codes.FailedPrecondition},
		{"anywhere", "", nil, "[control]", codes.FailedPrecondition},
	} {
		var id string
		for range 2 { // a provisioner that was killed asks again
			made, err := controller.CreateVolume(t.Context(), &pb.CreateVolumeRequest{Name: test.name, VolumeCapabilities: []*pb.VolumeCapability{mounted()},
				Parameters: map[string]string{"scope": test.scope}, AccessibilityRequirements: test.wanted}, wait)
			if err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			var got []string
			for _, topology := range made.Volume.AccessibleTopology {
				got = append(got, topology.Segments[nodeKey])
			}
			if fmt.Sprint(got) != test.want {
				t.Errorf("%s: usable in %v, want %s", test.name, got, test.want)
			}
			id = made.Volume.VolumeId
			test.wanted = nil
		}
		if test.stage == codes.OK && os.Geteuid() != 0 {
			continue // mounting needs root
		}
		stage := filepath.Join(root, "stage", test.name)
		_, err := n2.NodeStageVolume(t.Context(), &pb.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: stage, VolumeCapability: mounted()}, wait)
		if status.Code(err) != test.stage {
			t.Errorf("%s: node n2 stages it: %v, want %v", test.name, err, test.stage)
		}
		if err == nil {
			if _, err := n2.NodeUnstageVolume(context.Background(), &pb.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: stage}); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestCopiesKeepAttributes: files of a restored snapshot have the modes of the original's.
func TestCopiesKeepAttributes(t *testing.T) {
	root := shortRoot(t)
	controller := pb.NewControllerClient(serves(t, root, "control"))
	wait := grpc.WaitForReady(true)
	create := func(name string, from *pb.VolumeContentSource) string {
		made, err := controller.CreateVolume(t.Context(), &pb.CreateVolumeRequest{Name: name, VolumeCapabilities: []*pb.VolumeCapability{mounted()}, VolumeContentSource: from}, wait)
		if err != nil {
			t.Fatal(err)
		}
		return made.Volume.VolumeId
	}
	outside := csidriver.Outside{Data: filepath.Join(root, "data")}
	original := outside.Content(create("original", nil))
	modes := map[string]fs.FileMode{".": 0o777 | fs.ModeDir | fs.ModeSetgid, "dir": 0o770 | fs.ModeDir, "dir/secret": 0o600, "tool": 0o755}
	for _, err := range []error{
		os.Mkdir(filepath.Join(original, "dir"), 0o700), os.WriteFile(filepath.Join(original, "dir/secret"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(original, "tool"), nil, 0o600), os.Symlink("dir/secret", filepath.Join(original, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range modes {
		if err := os.Chmod(filepath.Join(original, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	snapshot, err := controller.CreateSnapshot(t.Context(), &pb.CreateSnapshotRequest{Name: "s", SourceVolumeId: filepath.Base(filepath.Dir(original))})
	if err != nil {
		t.Fatal(err)
	}
	restored := outside.Content(create("restored", &pb.VolumeContentSource{Type: &pb.VolumeContentSource_Snapshot{
		Snapshot: &pb.VolumeContentSource_SnapshotSource{SnapshotId: snapshot.Snapshot.SnapshotId}}}))
	for name, want := range modes {
		info, err := os.Lstat(filepath.Join(restored, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info, err, want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(restored, "link")); err != nil || string(data) != "x" {
		t.Errorf("the link leads to %q, %v", data, err)
	}
}
