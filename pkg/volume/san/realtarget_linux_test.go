package san_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/san"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
)

// real is a rig on a host whose kernel has iSCSI, with Debian's open-iscsi and tgt.
type real struct {
	*rig
	run command.Runner
}

// must runs a program.
func (r *real) must(line string) string {
	r.t.Helper()
	words := strings.Fields(line)
	out, err := r.run.Run(r.t.Context(), nil, words[0], words[1:]...)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(out)
}

// start starts an agent, without its Run: the test releases disks itself.
func (r *real) start() {
	parts := san.Parts{Run: r.run, Objects: r.api, System: san.Host(), Changed: r.changed}
	r.iscsi, r.fc = san.NewISCSI(r.Host, parts), san.NewFC(r.Host, parts)
	r.Restart(r.iscsi, r.fc)
}

// end ends a pod and releases its disk. It tries that again for a while, as Run does: multipathd may keep a map until udev has dealt with it.
func (r *real) end(uid string) {
	r.t.Helper()
	if err := r.Clean(r.t.Context(), pod(uid, v1.VolumeSource{}).UID); err != nil {
		r.t.Error(err)
	}
	r.eventually(func() error { return r.iscsi.ReleaseAll(r.t.Context()) })
}

// eventually repeats ok until it returns nil. udev and multipathd take half a minute on a slow host, and announce nothing that a test could wait for.
func (r *real) eventually(ok func() error) {
	r.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			r.t.Error(err)
			return
		}
	}
}

// sessions is what open-iscsi has, in its own words.
func (r *real) sessions() int {
	out, err := r.run.Run(r.t.Context(), nil, "iscsiadm", "-m", "session")
	if err != nil { // it has none
		return 0
	}
	return strings.Count(string(out), "\n")
}

// TestRealTarget: login, CHAP, scan, file system, multipath and logout with the kernel's initiator, open-iscsi and tgt at two addresses of this host. It
// needs WINKUBE_ISCSI_TARGET=1 and a separate host, with iscsid and tgtd running, because it changes the records of open-iscsi; WINKUBE_MULTIPATH=1 says
// that multipathd runs, too.
func TestRealTarget(t *testing.T) {
	if os.Getenv("WINKUBE_ISCSI_TARGET") == "" {
		t.Skip("WINKUBE_ISCSI_TARGET=1 runs it, on a host with tgtd and a kernel that has iSCSI")
	}
	r := &real{rig: &rig{Rig: volumetest.NewWith(t, volumetest.Linux(), mount.System()), t: t, changed: wake.New()}, run: command.New()}
	r.api = &objects{API: r.API, rig: r.rig}
	r.targets()
	r.start()
	chap := func(s *v1.ISCSIVolumeSource) {
		s.TargetPortal, s.Lun, s.SessionCHAPAuth, s.SecretRef = "127.0.0.1", 1, true, &v1.LocalObjectReference{Name: "chap"}
	}
	r.API.Secrets["chap"] = map[string][]byte{"node.session.auth.username": []byte("user"), "node.session.auth.password": []byte("wrong-password")}
	if _, err := r.Prepare(t.Context(), pod("a", iscsiSource(chap))); err == nil || !strings.Contains(err.Error(), "want: CHAP user and password") || strings.Contains(err.Error(), "wrong-password") {
		t.Errorf("with a wrong password: %v", err)
	}
	r.API.Secrets["chap"]["node.session.auth.password"] = []byte("right-password")
	p := pod("a", iscsiSource(chap))
	dir := r.MustPrepare(p)["v"]
	if err := os.WriteFile(filepath.Join(dir, "keep"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.MustPrepare(pod("second", iscsiSource(chap, func(s *v1.ISCSIVolumeSource) { s.Lun = 2 })))
	t.Logf("%s%s", r.must("iscsiadm -m session"), r.must("lsblk -o NAME,FSTYPE,MOUNTPOINT"))
	if r.sessions() != 1 {
		t.Errorf("%d sessions for two LUNs of a target", r.sessions())
	}
	r.start()
	r.MustPrepare(p)
	r.end("a")
	if r.sessions() != 1 {
		t.Error("the session ended with the first of two disks")
	}
	r.end("second")
	r.nothing()
	if dir = r.MustPrepare(p)["v"]; dir == "" {
		t.Error("no directory")
	}
	if data, err := os.ReadFile(filepath.Join(dir, "keep")); err != nil || string(data) != "x" {
		t.Errorf("the file of before is %q, %v", data, err)
	}
	r.end("a")
	r.absent(chap)
	r.device(chap)
	r.twoWays(chap)
}

// targets makes a target with three LUNs at tgtd, which listens on all addresses.
func (r *real) targets() {
	dir := r.t.TempDir()
	admin := "tgtadm --lld iscsi --mode "
	r.must(admin + "target --op new --tid 9 -T " + targetName)
	for n, lun := range []string{"1", "2", "3"} {
		file := filepath.Join(dir, lun)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, int64(n+1)*(32<<20))); err != nil {
			r.t.Fatal(err)
		}
		r.must(admin + "logicalunit --op new --tid 9 --lun " + lun + " -b " + file)
	}
	r.must(admin + "target --op bind --tid 9 -I ALL")
	r.must(admin + "account --op new --user user --password right-password")
	r.must(admin + "account --op bind --tid 9 --user user")
	r.t.Cleanup(func() {
		_, _ = r.run.Run(context.Background(), nil, "tgtadm", "--lld", "iscsi", "--mode", "target", "--op", "delete", "--force", "--tid", "9")
		_, _ = r.run.Run(context.Background(), nil, "tgtadm", "--lld", "iscsi", "--mode", "account", "--op", "delete", "--user", "user")
	})
}

// nothing checks that the host has no session, record or mount of ours.
func (r *real) nothing() {
	r.t.Helper()
	if n := r.sessions(); n != 0 {
		r.t.Errorf("%d sessions are left", n)
	}
	for _, dir := range []string{"/etc/iscsi/nodes", "/etc/iscsi/send_targets", "/var/lib/iscsi/nodes", "/var/lib/iscsi/send_targets", filepath.Join(r.Host.Root, "plugins")} {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				r.t.Errorf("left: %s", path)
			}
			return nil
		})
		if err != nil {
			r.t.Error(err)
		}
	}
	if points, err := mount.System().Below(r.Host.Root); err != nil || len(points) > 0 {
		r.t.Errorf("mounted: %q, %v", points, err)
	}
}

// absent asks for a LUN, and for a target, that are not there.
func (r *real) absent(chap func(*v1.ISCSIVolumeSource)) {
	_, err := r.Prepare(r.t.Context(), pod("lun", iscsiSource(chap, func(s *v1.ISCSIVolumeSource) { s.Lun = 77 })))
	if err == nil || !strings.Contains(err.Error(), "the kernel has found no such disk after 30s") {
		r.t.Errorf("a LUN that is not there: %v", err)
	}
	_, err = r.Prepare(r.t.Context(), pod("target", iscsiSource(chap, func(s *v1.ISCSIVolumeSource) { s.IQN = otherName })))
	if err == nil || !strings.Contains(err.Error(), "the portal does not announce target "+otherName) {
		r.t.Errorf("a target that is not there: %v", err)
	}
	r.end("lun")
	r.end("target")
	r.nothing()
}

// device has a LUN as a block device.
func (r *real) device(chap func(*v1.ISCSIVolumeSource)) {
	s := iscsiSource(chap).ISCSI
	_, pv := r.Bind("data", v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: s.TargetPortal, IQN: s.IQN, Lun: 3, SessionCHAPAuth: true, SecretRef: &v1.SecretReference{Name: "chap"}}})
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	p := volumetest.Pod(volumetest.ClaimVol(false))
	p.UID = "device"
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
	r.MustPrepare(p)
	got, err := r.Devices(p, &p.Spec.Containers[0])
	if err != nil || len(got) != 1 {
		r.t.Fatalf("%+v, %v", got, err)
	}
	if size := r.must("blockdev --getsize64 " + got[0].HostPath); size != "100663296\n" {
		r.t.Errorf("the device %s has %s bytes", got[0].HostPath, size)
	}
	r.end("device")
	r.nothing()
}

// twoWays has two portals of one target.
func (r *real) twoWays(chap func(*v1.ISCSIVolumeSource)) {
	both := iscsiSource(chap, func(s *v1.ISCSIVolumeSource) { s.Portals = []string{"127.0.0.2"} })
	r.MustPrepare(pod("both", both))
	r.eventually(func() error {
		found := r.must("lsblk -o NAME,TYPE,MOUNTPOINT")
		if r.sessions() != 2 || (os.Getenv("WINKUBE_MULTIPATH") != "") != strings.Contains(found, "mpath") || !strings.Contains(found, "/pods/both/") {
			return fmt.Errorf("%d sessions, and\n%s", r.sessions(), found)
		}
		r.t.Logf("%s", found)
		return nil
	})
	r.end("both")
	r.nothing()
}
