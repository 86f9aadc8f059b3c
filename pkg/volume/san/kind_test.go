package san_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/volume/volumetest"
)

const globalA = "plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.2003-01.org.example:disks-lun-0"

const firstUse = `$ iscsiadm -m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default -o new
$ iscsiadm -m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default -o nonpersistent --discover
$ iscsiadm -m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default -o delete
$ iscsiadm -m node -T iqn.2003-01.org.example:disks -p 10.0.0.1:3260,1 -I default -o new
$ iscsiadm -m node -T iqn.2003-01.org.example:disks -p 10.0.0.1:3260,1 -I default -o update -n node.startup -v manual
$ iscsiadm -m node -T iqn.2003-01.org.example:disks -p 10.0.0.1:3260,1 -I default -o update -n node.session.scan -v manual
$ iscsiadm -m node -T iqn.2003-01.org.example:disks -p 10.0.0.1:3260,1 -I default --login
$ blkid -p -s TYPE -s PTTYPE -o export -- /dev/sda
! exit status 2
$ mkfs.ext4 -F -m0 /dev/sda
$ mount -t ext4 -- /dev/sda ROOT/` + globalA + "\n"

// TestISCSI: the first pod logs in, formats the empty disk and mounts it; the second pod gets the same mount; a restarted agent runs nothing; the session
// ends with the last pod, and nothing is left.
func TestISCSI(t *testing.T) {
	r := newRig(t)
	a, b := pod("a", iscsiSource()), pod("b", iscsiSource())
	for _, p := range []*v1.Pod{a, b} {
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(os.Getgid()))}
	}
	dir := r.MustPrepare(a)["v"]
	if want := filepath.Join(r.Host.Root, "pods/a/volumes/kubernetes.io~iscsi/v"); dir != want {
		t.Errorf("the volume is at %s, want %s", dir, want)
	}
	r.want("the first pod", r.lines(), firstUse)
	if fi, err := os.Stat(dir); err != nil || fi.Mode()&os.ModeSetgid == 0 {
		t.Errorf("the volume is not of the fsGroup: %v, %v", fi, err)
	}
	r.MustPrepare(b)
	r.again()
	r.MustPrepare(a)
	r.MustPrepare(b)
	r.want("the second pod, and both after a restart", r.lines(), "")
	if m, err := r.Mount(a, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || m.HostPath != dir || m.ReadOnly {
		t.Errorf("mounted %+v, %v", m, err)
	}
	if got := r.iscsi.InUse(); len(got) != 1 || got[0] != "kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.org.example:disks:0" {
		t.Errorf("in use: %q", got)
	}
	r.clean("a")
	r.again()
	r.MustPrepare(b)
	r.want("the end of the first pod", r.lines(), "")
	r.clean("b")
	r.released()
	r.want("the end of the second pod", r.lines(), `$ iscsiadm -m session -r 1 --logout
$ iscsiadm -m node -T iqn.2003-01.org.example:disks -p 10.0.0.1:3260 -I default -o delete
`)
	r.want("left", r.left(), "")
	if len(r.Kernel.Points) > 0 {
		t.Errorf("mounted: %q", r.Kernel.Points)
	}
	r.MustPrepare(pod("c", iscsiSource()))
	if got := r.lines(); strings.Contains(got, "mkfs") || !strings.Contains(got, "$ fsck -a /dev/sd") {
		t.Errorf("the disk of before was not checked, or formatted again:\n%s", got)
	}
}

// TestSharedSession: disks of one target share a session. It ends with the last of them, also if the disk that logged in goes first, and one that an
// administrator has is left alone.
func TestSharedSession(t *testing.T) {
	r := newRig(t)
	r.world.disks["naa.60000000000000a1"].fs = "ext4"
	first, second := pod("first", iscsiSource()), pod("second", iscsiSource(func(s *v1.ISCSIVolumeSource) { s.Lun = 1 }))
	r.MustPrepare(first)
	r.MustPrepare(second)
	if len(r.world.sessions) != 1 || len(r.world.devices) != 2 {
		t.Fatalf("%d sessions, %d devices", len(r.world.sessions), len(r.world.devices))
	}
	r.clean("first")
	for len(r.iscsi.InUse()) > 1 {
		<-r.changed
	}
	if len(r.world.sessions) != 1 || len(r.world.devices) != 1 {
		t.Errorf("after the first: %d sessions, %d devices", len(r.world.sessions), len(r.world.devices))
	}
	r.again()
	r.clean("second")
	r.released()
	r.want("left", r.left(), "")

	if _, err := r.world.iscsiadm(nil, strings.Fields("-m node -T "+targetName+" -p "+portalA+",1 -I default -o new")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"node.startup", "node.session.scan"} {
		if _, err := r.world.iscsiadm(nil, strings.Fields("-m node -T "+targetName+" -p "+portalA+",1 -I default -o update -n "+name+" -v manual")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.world.iscsiadm(nil, strings.Fields("-m node -T "+targetName+" -p "+portalA+",1 -I default --login")); err != nil {
		t.Fatal(err)
	}
	r.lines()
	r.MustPrepare(first)
	r.clean("first")
	r.released()
	if got := r.lines(); strings.Contains(got, "log") || len(r.world.sessions) != 1 {
		t.Errorf("the administrator's session: %d, %s", len(r.world.sessions), got)
	}
}

// TestCHAP: secrets reach open-iscsi through its records, never as arguments (the fake sees to that), and leave with the session. Wrong ones are an
// error without values.
func TestCHAP(t *testing.T) {
	r := newRig(t)
	r.world.portals[portalA].chap = [2]string{"finder", "disc0very=1"}
	r.world.portals[portalA].sessions[targetName] = [2]string{"user", "s3cret # x"}
	p := pod("a", iscsiSource(func(s *v1.ISCSIVolumeSource) {
		s.DiscoveryCHAPAuth, s.SessionCHAPAuth, s.SecretRef = true, true, &v1.LocalObjectReference{Name: "chap"}
	}))
	r.API.Secrets["chap"] = map[string][]byte{"discovery.sendtargets.auth.username": []byte("finder"), "discovery.sendtargets.auth.password": []byte("disc0very=1\n"),
		"node.session.auth.username": []byte("user"), "node.session.auth.password": []byte("s3cret")}
	_, err := r.Prepare(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "want: CHAP user") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("with a wrong password: %v", err)
	}
	r.API.Secrets["chap"]["node.session.auth.password"] = []byte("s3cret # x")
	r.MustPrepare(p)
	record := filepath.Join(r.world.dir, "iscsi/nodes", targetName, "10.0.0.1,3260,1/default")
	if fi, err := os.Stat(record); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the record with the password: %v, %v", fi, err)
	}
	found := func() (files []string) {
		for _, dir := range []string{r.Host.Root, r.world.dir} {
			err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
				if err != nil || e.IsDir() {
					return err
				}
				if b, err := os.ReadFile(path); err == nil && (strings.Contains(string(b), "s3cret") || strings.Contains(string(b), "disc0very")) {
					files = append(files, path)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return files
	}
	if got := found(); len(got) != 1 || got[0] != record {
		t.Errorf("secrets are in %q, want only %s", got, record)
	}
	r.clean("a")
	r.released()
	if got := found(); len(got) > 0 {
		t.Errorf("after the end secrets are in %q", got)
	}
}

// TestMultipath: with several portals the disk is that of multipathd, for which the pod waits by the kernel's events; at the end it is flushed before its
// paths are removed. One portal that is away does not matter.
func TestMultipath(t *testing.T) {
	r := newRig(t)
	r.world.multi, r.world.late = true, true
	r.world.must(os.WriteFile(filepath.Join(r.world.dir, "run/multipathd.pid"), []byte("1"), 0o644))
	both := iscsiSource(func(s *v1.ISCSIVolumeSource) { s.Portals = []string{"10.0.0.2:3260", "10.0.0.1"} })
	r.MustPrepare(pod("a", both))
	if got := r.lines(); !strings.Contains(got, "mount -t ext4 -- /dev/dm-0 ") || strings.Count(got, "--login") != 2 {
		t.Errorf("ran %s", got)
	}
	r.clean("a")
	r.released()
	r.want("the end", r.lines(), `$ multipath -f dm-0
$ iscsiadm -m session -r 1 --logout
$ iscsiadm -m session -r 2 --logout
$ iscsiadm -m node -T iqn.2003-01.org.example:disks -p 10.0.0.1:3260 -I default -o delete
$ iscsiadm -m node -T iqn.2003-01.org.example:disks -p 10.0.0.2:3260 -I default -o delete
`)
	r.want("left", r.left(), "")

	r.world.multi, r.world.late, r.world.portals[portalA].off = false, false, true
	r.world.gone("run/multipathd.pid")
	r.MustPrepare(pod("b", both))
	r.clean("b")
	r.released()
	r.world.portals[portalB].off = true
	if _, err := r.Prepare(t.Context(), pod("c", both)); err == nil || !strings.Contains(err.Error(), "10.0.0.1:3260: ") || !strings.Contains(err.Error(), "10.0.0.2:3260: ") {
		t.Errorf("with both portals away: %v", err)
	}
	r.clean("c")
	r.released()
	r.want("left", r.left(), "")
}

// TestNeverFormats: a disk with anything on it is not formatted, and one that cannot be read is not taken to be empty.
func TestNeverFormats(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*lun)
		ro   bool
		want string
	}{
		{"another file system", func(d *lun) { d.fs = "xfs" }, false, `fsType "ext4": /dev/sda has xfs; want that as fsType if it is a file system, or an empty disk`},
		{"LVM", func(d *lun) { d.fs = "LVM2_member" }, false, `fsType "ext4": /dev/sda has LVM2_member`},
		{"partitions", func(d *lun) { d.fs = "PTTYPE=gpt" }, false, "/dev/sda has a partition table (gpt): want a file system on the whole disk"},
		{"data at the beginning", func(d *lun) { d.data[1<<20-1] = 'D' }, false, "/dev/sda has data that blkid does not know, and is not formatted"},
		{"data at the end", func(d *lun) { d.data[len(d.data)-1] = 'D' }, false, "/dev/sda has data that blkid does not know, and is not formatted"},
		{"cannot be read", func(d *lun) { d.data = nil }, false, "cannot read the disk: /dev/sda has no size"},
		{"several signatures", func(d *lun) { d.blkid = &exit8 }, false, "/dev/sda has signatures of several file systems"},
		{"empty and read-only", func(*lun) {}, true, "/dev/sda is empty and the volume is read-only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			c.set(r.world.disks["naa.60000000000000a0"])
			_, err := r.Prepare(t.Context(), pod("a", iscsiSource(func(s *v1.ISCSIVolumeSource) { s.ReadOnly = c.ro })))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %s", err, c.want)
			}
			if strings.Contains(r.lines(), "mkfs") {
				t.Error("it was formatted")
			}
			r.clean("a")
			r.released()
			r.want("left", r.left(), "")
		})
	}
}

// TestCutShort: an agent that is killed after any program of the first use leaves what the next one completes, or releases.
func TestCutShort(t *testing.T) {
	steps := strings.Count(firstUse, "$ ")
	for _, ends := range []bool{false, true} {
		for cut := 1; cut <= steps; cut++ {
			r := newRig(t)
			r.world.cutAfter = cut
			if _, err := r.Prepare(t.Context(), pod("a", iscsiSource())); err == nil && cut < steps {
				t.Fatalf("after %d of %d programs: no error", cut, steps)
			}
			r.world.cutAfter = 0
			r.again()
			if !ends {
				r.MustPrepare(pod("a", iscsiSource()))
			}
			r.clean("a")
			r.released()
			if got := r.left(); got != "" || len(r.Kernel.Points) > 0 {
				t.Errorf("cut after %d programs (ends %v): left %q, mounted %q\n%s", cut, ends, got, r.Kernel.Points, r.lines())
			}
			r.kill()
		}
	}
}

// TestReboot: after a reboot the disk is found again for a pod that is still on the node, and for a device under its new name.
func TestReboot(t *testing.T) {
	r := newRig(t)
	_, pv := r.Bind("data", v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1:3260", IQN: targetName, Lun: 1}})
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	block := volumetest.Pod(volumetest.ClaimVol(false))
	block.UID = "block"
	block.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
	device := func() string {
		t.Helper()
		r.MustPrepare(block)
		got, err := r.Devices(block, &block.Spec.Containers[0])
		if err != nil || len(got) != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		return strings.TrimPrefix(got[0].HostPath, r.world.dir)
	}
	if got := device(); got != "/dev/sda" {
		t.Errorf("the device is %s", got)
	}
	r.MustPrepare(pod("a", iscsiSource()))
	r.world.reboot()
	r.again()
	r.MustPrepare(pod("a", iscsiSource())) // now its disk has the first name
	if got := device(); got != "/dev/sdd" {
		t.Errorf("after the reboot the device is %s", got)
	}
	r.clean("a")
	r.clean(types.UID("block"))
	r.released()
	r.want("left", r.left(), "")
}

// TestReleasedTogether: two disks of a target whose pods end at the same time leave no session, record or device behind.
func TestReleasedTogether(t *testing.T) {
	r := newRig(t)
	other := func(s *v1.ISCSIVolumeSource) { s.Lun = 1 }
	for i := range 40 {
		r.MustPrepare(pod("a", iscsiSource()))
		r.MustPrepare(pod("b", iscsiSource(other)))
		r.clean("a")
		r.clean("b")
		r.released()
		if got := r.left(); got != "" {
			t.Fatalf("round %d: left %q", i, got)
		}
	}
}

// TestBusy: a disk that something still uses keeps its session, and is released when that has ended.
func TestBusy(t *testing.T) {
	r := newRig(t)
	r.MustPrepare(pod("a", iscsiSource()))
	r.world.busy["sda"] = true
	r.clean("a")
	r.kill()
	k := r.iscsi
	if err := k.ReleaseAll(t.Context()); err == nil || !strings.Contains(err.Error(), "/dev/sda is still in use after it was unmounted") || len(k.InUse()) != 1 {
		t.Errorf("%v, %q", err, k.InUse())
	}
	r.world.busy["sda"] = false
	if err := k.ReleaseAll(t.Context()); err != nil || len(k.InUse()) != 0 {
		t.Errorf("%v, %q", err, k.InUse())
	}
	r.want("left", r.left(), "")
}

// TestNotAttached: without the attach controller a pod waits, and the error says for what.
func TestNoISCSIAdm(t *testing.T) {
	r := newRig(t)
	r.world.Install("iscsiadm", nil)
	_, err := r.Prepare(t.Context(), pod("a", iscsiSource()))
	if err == nil || !strings.Contains(err.Error(), "MountVolume.SetUp failed") || !strings.Contains(err.Error(), "install open-iscsi (Debian, Ubuntu, SUSE) or iscsi-initiator-utils (RHEL)") {
		t.Error(err)
	}
	r.API.Down = errors.New("connection refused")
	r.clean("a")
}
