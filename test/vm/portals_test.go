package vm

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/test/output"
)

const portals = "iqn.2003-01.org.example:portals"

// twoWays is a volume of a target that the machine reaches at two addresses.
func twoWays(number int32) v1.Volume {
	return lun(number, func(s *v1.ISCSIVolumeSource) {
		s.IQN, s.Portals, s.SessionCHAPAuth, s.SecretRef = portals, []string{"172.30.0.31"}, false, nil
	})
}

// makePortals configures the machine's target as an administrator does, so that it is there after each boot, and multipathd as the guide says.
func makePortals(d *days) {
	d.run("cat >/etc/multipath.conf <<'CONF'\n" + d.guide("`/etc/multipath.conf`") + "CONF\nsystemctl reload multipathd")
	d.run("test -e /etc/tgt/conf.d/portals.conf || { truncate -s 64M /srv/portals1 /srv/portals2 && cat >/etc/tgt/conf.d/portals.conf && systemctl restart tgt; } <<'CONF'\n" +
		"<target " + portals + ">\nbacking-store /srv/portals1\nbacking-store /srv/portals2\n</target>\nCONF")
}

// twoPortals: multipathd joins the ways to a disk, and a pod goes on writing while one of them is silent, whichever that is.
func twoPortals(d *days) {
	makePortals(d)
	d.create(d.withDisk("portals", twoWays(1), "shell", "-c", "append /disk/lines began; sleep"))
	p := d.ready("portals")
	at := "/var/lib/kubelet/pods/" + string(p.UID) + "/volumes/kubernetes.io~iscsi/disk"
	d.Logf("%s", d.run("dpkg-query -W multipath-tools open-iscsi tgt; iscsiadm -m session; multipath -ll; grep -H . /sys/class/iscsi_session/*/recovery_tmo; findmnt -no SOURCE "+at))
	if got := d.run("findmnt -no SOURCE " + at); !strings.HasPrefix(got, "/dev/dm-") {
		d.Errorf("the pod has %q, want multipathd's device", got)
	}
	active(d, 2)
	want := "began\n"
	for _, portal := range []string{"172.30.0.30", "172.30.0.31"} {
		d.run("nft add table inet gone && nft 'add chain inet gone in { type filter hook input priority 0; }' && nft add rule inet gone in ip daddr " + portal + " tcp dport 3260 drop")
		begin := time.Now()
		for range 3 {
			d.run(inside(p, "append /disk/lines without-"+portal) + " && sync -f " + at)
			want += "without-" + portal + "\n"
		}
		d.Logf("without %s the pod's lines were on the disk after %.0f s", portal, time.Since(begin).Seconds())
		active(d, 1)
		d.run("nft delete table inet gone")
		begin = time.Now()
		active(d, 2)
		d.Logf("with it again, multipathd used it after %.0f s", time.Since(begin).Seconds())
	}
	if now := d.ready("portals"); now.Status.ContainerStatuses[0].RestartCount != 0 {
		d.Errorf("the pod's container was restarted: %+v", now.Status.ContainerStatuses[0])
	}
	d.remove("portals")
	released(d)
	if got := d.finished(d.withDisk("again", twoWays(1), "cat", "/disk/lines")); got != want {
		d.Errorf("the disk has %q, want %q", got, want)
	}
	d.remove("again")
	released(d)
}

// realTarget runs the test of package san that needs a real target, against the machine's kernel, open-iscsi, tgt and multipathd. No kubelet is in between.
func realTarget(d *days) {
	program := filepath.Join(d.TempDir(), "san.test")
	cmd := exec.CommandContext(d.Context(), "go", "test", "-c", "-o", program, "./pkg/volume/san")
	cmd.Dir = d.cluster.Root
	said, err := output.Of(cmd)
	if err != nil {
		d.Fatalf("%v %s", err, said)
	}
	d.must(d.vm.Send(d.Context(), program, "/root/san.test"))
	got, err := d.vm.Run(d.Context(), "cd /root && chmod +x san.test && WINKUBE_ISCSI_TARGET=1 WINKUBE_MULTIPATH=1 ./san.test -test.v -test.run '^TestRealTarget$' 2>&1; code=$?; rm san.test; exit $code")
	d.Logf("%s", got)
	d.must(err)
}

// active waits until multipathd uses so many ways.
func active(d *days, want int) {
	d.Helper()
	d.eventually(4*time.Minute, fmt.Sprintf("multipathd uses %d ways", want), func(ctx context.Context) error {
		out, err := d.vm.Run(ctx, "multipathd show paths raw format '%d %t'")
		if err == nil && strings.Count(out, " active") != want {
			err = fmt.Errorf("ways: %q", out)
		}
		return err
	})
}

// released waits until the machine has nothing of a SAN: no session, map, disk, mount or record.
func released(d *days) {
	d.Helper()
	d.eventually(3*time.Minute, "the node releases the disk", func(ctx context.Context) error {
		out, err := d.vm.Run(ctx, "iscsiadm -m session 2>&1; multipath -ll; ls /sys/block | grep ^sd; grep kubernetes.io.iscsi /proc/mounts; find /etc/iscsi /var/lib/iscsi -path '*/nodes/*' -type f -o -path '*/send_targets/*' -type f; ls /var/lib/kubelet/plugins/kubernetes.io/iscsi/records; true")
		if err == nil && out != "iscsiadm: No active sessions.\n" {
			err = fmt.Errorf("left: %s", out)
		}
		return err
	})
}
