package kinds_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// anyDisk is a block device of this machine. Nothing is done to it.
func anyDisk(t *testing.T) string {
	entries, err := os.ReadDir("/dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeDevice != 0 && e.Type()&fs.ModeCharDevice == 0 {
			return filepath.Join("/dev", e.Name())
		}
	}
	t.Skip("this machine has no block device")
	return ""
}

// TestBlockDevice: a local PersistentVolume of volumeMode Block, named by a link as /dev/disk has them, reaches the container as a device.
func TestBlockDevice(t *testing.T) {
	disk := anyDisk(t)
	link := filepath.Join(t.TempDir(), "by-id")
	if err := os.Symlink(disk, link); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{false, true} {
		r := volumetest.New(t, volumetest.Linux())
		_, pv := r.Bind("data", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: link}})
		pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
		p := volumetest.Pod(volumetest.ClaimVol(readOnly))
		p.Spec.Containers = []v1.Container{{Name: "app", VolumeDevices: []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/xvda"}}}}
		r.MustPrepare(p)
		got, err := r.Devices(p, &p.Spec.Containers[0])
		if want := (pod.Device{HostPath: disk, ContainerPath: "/dev/xvda", ReadOnly: readOnly}); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("read-only %v: %+v, %v", readOnly, got, err)
		}
		p.Spec.Containers[0].VolumeDevices[0].Name = "other"
		if _, err := r.Devices(p, &p.Spec.Containers[0]); err == nil {
			t.Error("a device of no volume")
		}
	}
}
