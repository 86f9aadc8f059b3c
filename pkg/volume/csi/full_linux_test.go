package csi_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestDiskFullWhileStaging: on a full disk, the node's or the driver's, a pod waits for its volume. The driver is not called before the volume is
// recorded, other pods keep theirs, nothing is deleted, and with room again the pod gets it.
func TestDiskFullWhileStaging(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t)
	if err := unix.Mount("tmpfs", r.Host.Root, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(r.Host.Root, unix.MNT_DETACH) })
	r.restart()
	a, b := r.pod("a"), r.pod("b")
	ballast := r.path("ballast")
	fill(t, ballast)
	for range 2 {
		r.mustWait(a, syscall.ENOSPC.Error())
	}
	r.want("")
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.driver.Fail("NodeStageVolume", status.Error(codes.ResourceExhausted, "no space left on the array"))
	r.mustWait(a, "no space left on the array")
	r.want("Stage")
	if _, err := os.Stat(r.path("pods/a/volumes/kubernetes.io~csi/pv/vol_data.json")); err != nil {
		t.Errorf("a volume that may be staged has no record: %v", err)
	}
	r.restart()
	r.MustPrepare(a)
	r.want("Stage Stage Publish")

	fill(t, ballast)
	r.mustWait(b, syscall.ENOSPC.Error())
	r.MustPrepare(a)
	r.want("Stage Stage Publish")
	if got := r.driver.Volumes()["h"]; len(got.Published) != 1 || got.Staged == "" {
		t.Errorf("the running pod's volume: %+v", got)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.MustPrepare(b)
	r.want("Stage Stage Publish Publish")
	r.mustClean("a")
	r.mustClean("b")
	r.nothingLeft()
}

// fill writes a file until the file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
