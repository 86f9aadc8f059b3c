package san_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestInitiatorName: the volume's own interface is a copy of the named one, and goes with the volume.
func TestInitiatorName(t *testing.T) {
	r := newRig(t)
	p := pod("a", iscsiSource(func(s *v1.ISCSIVolumeSource) { s.InitiatorName = ptr.To("iqn.2003-01.org.example:node") }))
	r.MustPrepare(p)
	iface := filepath.Join(r.world.dir, "iscsi/ifaces/10.0.0.1:3260:v")
	if b, err := os.ReadFile(iface); err != nil || !strings.Contains(string(b), "iface.initiatorname = iqn.2003-01.org.example:node\n") || !strings.Contains(string(b), "iface.mtu = 9000\n") {
		t.Errorf("the interface is %s, %v", b, err)
	}
	r.clean("a")
	r.released()
	r.want("left", r.left(), "")
}

// TestReadOnly: a read-only volume is mounted so for the node; another pod that may write is told to wait.
func TestReadOnly(t *testing.T) {
	r := newRig(t)
	r.world.disks["naa.60000000000000a0"].fs = "ext4"
	reader := pod("reader", iscsiSource(func(s *v1.ISCSIVolumeSource) { s.ReadOnly = true }))
	r.MustPrepare(reader)
	if got := r.lines(); !strings.Contains(got, "mount -t ext4 -o ro -- ") || strings.Contains(got, "fsck") {
		t.Errorf("ran %s", got)
	}
	if m, err := r.Mount(reader, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || !m.ReadOnly {
		t.Errorf("mounted %+v, %v", m, err)
	}
	if _, err := r.Prepare(t.Context(), pod("writer", iscsiSource())); err == nil || !strings.Contains(err.Error(), "another pod has the disk read-only on this node") {
		t.Error(err)
	}
	r.clean("reader")
	r.clean("writer")
	r.released()
	r.MustPrepare(pod("writer", iscsiSource()))
	r.MustPrepare(reader)
}

// TestUpstreamBefore: what upstream's kubelet has mounted is found. A pod that is still there keeps it; when it has ended, all of it is released, by the record
// that upstream has left below the mount.
func TestUpstreamBefore(t *testing.T) {
	r := newRig(t)
	both := iscsiSource(func(s *v1.ISCSIVolumeSource) { s.Portals = []string{"10.0.0.2"} })
	r.MustPrepare(pod("a", both))
	record, err := os.ReadFile(filepath.Join(r.Host.Root, globalA, "iscsi.json"))
	var have struct {
		VolName, Iqn, Lun, Iface string
		Portals                  []string
	}
	if err = errors.Join(err, json.Unmarshal(record, &have)); err != nil || have.VolName != "v" || have.Iqn != targetName || have.Lun != "0" || have.Iface != "default" || len(have.Portals) != 2 {
		t.Errorf("upstream's record is %s, %v", record, err)
	}
	r.kill()
	// Upstream has no records of ours.
	for _, dir := range []string{filepath.Join(r.Host.Root, "plugins/kubernetes.io/iscsi/records"), filepath.Join(r.Host.Root, "pods/a/plugins")} {
		r.world.must(os.RemoveAll(dir))
	}
	r.lines()
	r.start()
	r.kill()
	if err := r.iscsi.ReleaseAll(t.Context()); err == nil || !strings.Contains(err.Error(), "it may be that of volume v of pod a, which has no record of its disk") {
		t.Errorf("with the pod of before: %v", err)
	}
	r.want("with the pod of before", r.lines(), "")
	r.start()
	r.clean("a")
	r.released()
	if got := r.lines(); strings.Count(got, "--logout") != 2 {
		t.Errorf("ran %s", got)
	}
	r.want("left", r.left(), "")
}

// TestHangingTarget: a login that hangs keeps its own pod waiting, and ends it late; a disk elsewhere does not notice.
func TestHangingTarget(t *testing.T) {
	r := newRig(t)
	hung := make(chan struct{})
	r.world.hang("--login", targetName, hung)
	r.iscsi.SetWait(50 * time.Millisecond)
	_, err := r.Prepare(t.Context(), pod("a", iscsiSource()))
	if err == nil || !strings.Contains(err.Error(), "still busy after 50ms; waiting for its end") {
		t.Errorf("%v", err)
	}
	r.iscsi.SetWait(time.Minute)
	r.MustPrepare(pod("b", iscsiSource(func(s *v1.ISCSIVolumeSource) { s.IQN = otherName })))
	close(hung)
	r.MustPrepare(pod("a", iscsiSource()))
	if n := strings.Count(r.lines(), "--login"); n != 2 {
		t.Errorf("%d logins, want the one that hung and the other disk's", n)
	}
}

// TestFC: the disk of a port is found by a scan of that port alone, of its LUN alone, and removed at the end. Without a way the error says which ports there are.
func TestFC(t *testing.T) {
	r := newRig(t)
	const wwn = "500a0982991b8dc5"
	source := v1.VolumeSource{FC: &v1.FCVolumeSource{TargetWWNs: []string{"0x" + strings.ToUpper(wwn)}, Lun: ptr.To(int32(1))}}
	r.world.set("class/fc_host/host7/port_name", "0x2100001b32000000")
	r.world.set("class/fc_host/host7/port_state", "Online")
	if _, err := r.Prepare(t.Context(), pod("a", source)); err == nil || !strings.Contains(err.Error(), wwn+": no FC port of this node sees that port of the storage") || !strings.Contains(err.Error(), "0x2100001b32000000 Online") {
		t.Error(err)
	}
	r.world.wwns[wwn] = map[int]string{0: "naa.60000000000000a0", 1: "naa.60000000000000a1"}
	r.world.ports[wwn] = "7"
	r.world.set("class/fc_remote_ports/rport-7:0-3/port_name", "0x"+wwn)
	r.world.set("class/fc_remote_ports/rport-7:0-3/port_state", "Online")
	r.world.set("class/fc_remote_ports/rport-7:0-3/scsi_target_id", "4")
	dir := r.MustPrepare(pod("a", source))["v"]
	if want := filepath.Join(r.Host.Root, "pods/a/volumes/kubernetes.io~fc/v"); dir != want || len(r.world.devices) != 1 {
		t.Errorf("%s, %d devices", dir, len(r.world.devices))
	}
	r.again()
	r.MustPrepare(pod("a", source))
	r.clean("a")
	r.released()
	r.want("left", r.left(), "")
	if got := r.lines(); strings.Count(got, "$ mount") != 1 || strings.Contains(got, "iscsiadm") {
		t.Errorf("ran %s", got)
	}
	byID := v1.VolumeSource{FC: &v1.FCVolumeSource{WWIDs: []string{"360000000000000a1"}}}
	if err := os.RemoveAll(filepath.Join(r.world.dir, "dev/disk/by-id/scsi-360000000000000a1")); err != nil {
		t.Fatal(err)
	}
	r.MustPrepare(pod("b", byID))
	r.clean("b")
	r.released()
	if len(r.world.devices) != 1 { // a scan for a name finds LUN 0, too, which is not ours
		t.Errorf("devices: %v", r.world.devices)
	}
}

// TestNotAttached: without the attach controller a pod waits, and nothing is done.
func TestNotAttached(t *testing.T) {
	r := newRig(t)
	r.api.nothing = true
	r.iscsi.SetAttachWait(20 * time.Millisecond)
	if _, err := r.Prepare(t.Context(), pod("a", iscsiSource())); err == nil || !strings.Contains(err.Error(), "volume not attached according to node status for volume") {
		t.Error(err)
	}
	r.want("ran", r.lines(), "")
}

// TestUnfinishedWrites: an agent that was killed while it wrote leaves no file, which may have a secret.
func TestUnfinishedWrites(t *testing.T) {
	r := newRig(t)
	r.kill()
	records := filepath.Join(r.Host.Root, "plugins", "kubernetes.io", "iscsi", "records")
	for _, dir := range []string{filepath.Join(r.world.dir, "iscsi"), records} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ".winkube-123"), []byte("node.session.auth.password = s3cret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	r.want("left", r.left(), "")
}
