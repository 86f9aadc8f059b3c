package csi_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/csi/csitest"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
)

// binding is a driver that mounts a directory, as real ones do.
type binding struct {
	*csitest.Driver
	data   string
	leaves bool // mounts, although it says that it has unmounted them
}

func (b *binding) Node() pb.NodeClient { return bindingClient{b.Driver.Node(), b} }

type bindingClient struct {
	pb.NodeClient
	b *binding
}

func (c bindingClient) NodePublishVolume(ctx context.Context, in *pb.NodePublishVolumeRequest, _ ...grpc.CallOption) (*pb.NodePublishVolumeResponse, error) {
	out, err := c.NodeClient.NodePublishVolume(ctx, in)
	if err == nil {
		err = unix.Mount(c.b.data, in.TargetPath, "", unix.MS_BIND, "")
	}
	return out, err
}

func (c bindingClient) NodeUnpublishVolume(ctx context.Context, in *pb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption) (*pb.NodeUnpublishVolumeResponse, error) {
	if c.b.leaves {
		return &pb.NodeUnpublishVolumeResponse{}, nil
	}
	if err := unix.Unmount(in.TargetPath, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	return c.NodeClient.NodeUnpublishVolume(ctx, in)
}

func (c bindingClient) NodeUnstageVolume(ctx context.Context, in *pb.NodeUnstageVolumeRequest, _ ...grpc.CallOption) (*pb.NodeUnstageVolumeResponse, error) {
	if c.b.leaves {
		return &pb.NodeUnstageVolumeResponse{}, nil
	}
	return c.NodeClient.NodeUnstageVolume(ctx, in)
}

// TestRealMounts: on a real kernel, with a subPath in use, nothing stays mounted and nothing behind a mount is deleted: after an orderly end,
// without the driver, and with a driver that leaves its mounts.
func TestRealMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	for _, leaves := range []bool{false, true} {
		data := t.TempDir()
		driver := &binding{Driver: csitest.New(t, driverName), data: data, leaves: leaves}
		r := &rig{Rig: volumetest.NewWith(t, volumetest.Linux(), mount.System()), t: t, driver: driver.Driver, drivers: csitest.Drivers{driverName: driver}, changed: wake.New()}
		t.Cleanup(func() { // after a failure
			points, _ := mount.System().Below(r.Host.Root)
			for _, p := range slices.Backward(points) {
				_ = mount.System().Unmount(p)
			}
		})
		r.api = &objects{API: r.API, drivers: map[string]*storagev1.CSIDriver{}, next: make(chan struct{})}
		r.driver.SetCapabilities(stages)
		r.rule(storagev1.CSIDriverSpec{AttachRequired: new(false)})
		r.restart()
		p := r.pod("a")
		dir := r.MustPrepare(p)["v"]
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "sub"), 0o755), os.WriteFile(filepath.Join(dir, "sub/keep"), []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "sub"}); err != nil {
			t.Fatal(err)
		} else if _, err := os.Stat(filepath.Join(m.HostPath, "keep")); err != nil {
			t.Error(err)
		}
		r.drivers = csitest.Drivers{}
		r.restart()
		if err := r.Clean(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "stays until the driver is back") {
			t.Errorf("without the driver: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "sub/keep")); err != nil {
			t.Errorf("without the driver: %v", err)
		}
		r.drivers = csitest.Drivers{driverName: csi.Driver(driver)}
		r.restart()
		r.mustClean("a")
		if b, err := os.ReadFile(filepath.Join(data, "sub/keep")); err != nil || string(b) != "x" {
			t.Errorf("leaves %v: the file behind the mount: %q, %v", leaves, b, err)
		}
		if points, err := mount.System().Below(r.Host.Root); err != nil || len(points) > 0 {
			t.Errorf("leaves %v: mounted %q, %v", leaves, points, err)
		}
		if _, err := os.Stat(r.Dir("a")); err == nil {
			t.Errorf("leaves %v: the pod's directory is still there", leaves)
		}
	}
}
