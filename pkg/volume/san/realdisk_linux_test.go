package san_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/san"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
)

// TestRealDisk: with this host's blkid, mkfs, fsck, mount and kernel a disk is formatted once, keeps its files, and is not released while it is in use. The disk is a
// loop device in the place of one that a SCSI host has found.
func TestRealDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for mounts")
	}
	// Processes of others that copy this machine's mounts would keep the disk in use.
	if !san.OwnMounts(t, `mount --make-rprivate /`) {
		return
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 32<<20)); err != nil {
		t.Fatal(err)
	}
	run := command.New()
	out, err := run.Run(t.Context(), nil, "losetup", "--find", "--show", file)
	if err != nil {
		t.Skipf("this machine gives no loop device: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if _, err := run.Run(context.Background(), nil, "losetup", "--detach", device); err != nil {
			t.Error(err)
		}
	})
	r := &rig{Rig: volumetest.NewWith(t, volumetest.Linux(), mount.System()), t: t, changed: wake.New()}
	t.Cleanup(func() { // after a failure
		points, _ := mount.System().Below(r.Host.Root)
		for i := range points {
			_ = mount.System().Unmount(points[len(points)-1-i])
		}
	})
	r.world = newWorld(t, nil)
	r.world.system.Dev, r.world.system.Claimed = "/dev", san.Host().Claimed
	removed := 0
	r.world.system.Write = func(path, _ string) error {
		if strings.HasSuffix(path, "/delete") {
			removed++
			r.world.gone("sys/class/scsi_device/7:0:4:1")
		}
		return nil
	}
	find := func() {
		r.world.set("class/scsi_device/7:0:4:1/device/block/"+filepath.Base(device)+"/size", "1")
	}
	for name, value := range map[string]string{"port_name": "0x500a0982991b8dc5", "port_state": "Online", "scsi_target_id": "4"} {
		r.world.set("class/fc_remote_ports/rport-7:0-3/"+name, value)
	}
	r.api = &objects{API: r.API, rig: r}
	r.fc = san.NewFC(r.Host, san.Parts{Run: run, Objects: r.api, System: r.world.system, Changed: r.changed})
	r.iscsi = san.NewISCSI(r.Host, san.Parts{Run: run, Objects: r.api, System: r.world.system, Changed: r.changed})
	r.Restart(r.fc)
	source := v1.VolumeSource{FC: &v1.FCVolumeSource{TargetWWNs: []string{"500a0982991b8dc5"}, Lun: ptr.To(int32(1))}}
	find()
	for round := range 2 {
		p := pod("a", source)
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(4242))}
		dir := r.MustPrepare(p)["v"]
		if round == 0 {
			err = os.WriteFile(filepath.Join(dir, "keep"), []byte("x"), 0o600)
		} else if data, wrong := os.ReadFile(filepath.Join(dir, "keep")); string(data) != "x" {
			t.Errorf("the file of before is %q, %v", data, wrong)
		}
		if err != nil {
			t.Fatal(err)
		}
		if used, err := san.Host().Claimed(device); err != nil || !used {
			t.Errorf("a mounted disk is not in use: %v", err)
		}
		open, err := os.Open(dir) // a process of the pod that the kubelet does not know
		if err != nil {
			t.Fatal(err)
		}
		r.clean("a")
		if err := r.fc.ReleaseAll(t.Context()); err == nil || !strings.Contains(err.Error(), "is still in use after it was unmounted") || removed != round {
			t.Errorf("with an open file: %v, %d removed", err, removed)
		}
		if err := open.Close(); err != nil {
			t.Fatal(err)
		}
		if err := r.fc.ReleaseAll(t.Context()); err != nil || removed != round+1 {
			t.Errorf("%v, %d removed", err, removed)
		}
		if points, err := mount.System().Below(r.Host.Root); err != nil || len(points) > 0 {
			t.Errorf("still mounted: %q, %v", points, err)
		}
		find()
	}
	if out, err := run.Run(t.Context(), nil, "mkfs.xfs", "-V"); err == nil {
		t.Logf("%s", out)
		p := pod("b", source)
		p.Spec.Volumes[0].FC.FSType = "xfs"
		if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), `fsType "xfs": `+device+` has ext4`) {
			t.Errorf("with another file system: %v", err)
		}
		r.clean("b")
	}
}
