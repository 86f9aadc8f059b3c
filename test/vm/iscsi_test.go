package vm

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const target = "iqn.2003-01.org.example:disks"

// lun is a volume of the machine's own target.
func lun(number int32, change ...func(*v1.ISCSIVolumeSource)) v1.Volume {
	s := &v1.ISCSIVolumeSource{TargetPortal: "172.30.0.30", IQN: target, Lun: number, FSType: "ext4", SessionCHAPAuth: true, SecretRef: &v1.LocalObjectReference{Name: "vm-chap"}}
	for _, c := range change {
		c(s)
	}
	return v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{ISCSI: s}}
}

// withDisk is a pod with a LUN at /disk.
func (d *days) withDisk(name string, volume v1.Volume, args ...string) *v1.Pod {
	p := d.pod(name, args...)
	p.Spec.Volumes = []v1.Volume{volume}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "disk", MountPath: "/disk"}}
	return p
}

// iscsi: the kernel's initiator and Debian's open-iscsi, with Debian's tgt as the storage: a login with CHAP, an empty disk, a second LUN in the same session, a
// wrong password, a device, the kubelet killed, and nothing left.
func iscsi(d *days) {
	d.run("systemctl start tgt iscsid && truncate -s 64M /srv/lun1 /srv/lun2 /srv/lun3")
	admin := "tgtadm --lld iscsi "
	d.run(admin + "--mode target --op new --tid 1 -T " + target + " && for n in 1 2 3; do " + admin + "--mode logicalunit --op new --tid 1 --lun $n -b /srv/lun$n; done && " +
		admin + "--mode target --op bind --tid 1 -I ALL && " + admin + "--mode account --op new --user vm --password s3cret-of-vm && " + admin + "--mode account --op bind --tid 1 --user vm")
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vm-chap"}, StringData: map[string]string{"node.session.auth.username": "vm", "node.session.auth.password": "wrong-one"}}
	if _, err := d.client.CoreV1().Secrets(space).Create(d.Context(), secret, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
	d.create(d.withDisk("writer", lun(1), "shell", "-c", "write /disk/file written; sleep"))
	d.eventually(3*time.Minute, "an Event about the wrong password", func(ctx context.Context) error {
		events, err := d.client.CoreV1().Events(space).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=vm-writer,reason=FailedMount"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, "wrong-one") {
				d.Errorf("an Event shows the password: %s", e.Message)
			}
			if strings.Contains(e.Message, "want: CHAP user and password") {
				return nil
			}
		}
		return fmt.Errorf("%d events of FailedMount, none of that", len(events.Items))
	})
	secret.StringData["node.session.auth.password"] = "s3cret-of-vm"
	if _, err := d.client.CoreV1().Secrets(space).Update(d.Context(), secret, metav1.UpdateOptions{}); err != nil {
		d.Fatal(err)
	}
	d.ready("writer")
	d.create(d.withDisk("second", lun(2), "sleep"))
	d.ready("second")
	d.Logf("%s", d.run("iscsiadm -m session; lsblk -o NAME,FSTYPE,MOUNTPOINT; iscsiadm --version"))
	if got := d.run("iscsiadm -m session | wc -l"); got != "1\n" {
		d.Errorf("two LUNs have %s sessions, want 1", strings.TrimSpace(got))
	}
	d.blockDevice()
	d.run("systemctl kill -s KILL kubelet")
	d.nodeReady(2 * time.Minute)
	d.remove("writer")
	if got := d.finished(d.withDisk("reader", lun(1, func(s *v1.ISCSIVolumeSource) { s.ReadOnly = true }), "shell", "-c", "cat /disk/file; write /disk/file broken")); !strings.Contains(got, "written\n") || !strings.Contains(got, "read-only file system") {
		d.Errorf("a pod that may only read says %q", got)
	}
	d.remove("reader", "second")
	d.eventually(2*time.Minute, "the node logs out", func(ctx context.Context) error {
		out, err := d.vm.Run(ctx, "iscsiadm -m session 2>&1; find /etc/iscsi/nodes /etc/iscsi/send_targets -type f 2>/dev/null; ls /var/lib/kubelet/plugins/kubernetes.io/iscsi/records; grep -r s3cret /etc/iscsi || true")
		if err == nil && out != "iscsiadm: No active sessions.\n" {
			err = fmt.Errorf("left: %s", out)
		}
		return err
	})
}

// blockDevice: a LUN as a device in a container.
func (d *days) blockDevice() {
	p := d.pod("device", "sleep")
	p.Spec.Volumes = []v1.Volume{d.claim("device", v1.PersistentVolumeBlock, v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: "172.30.0.30", IQN: target, Lun: 3, SessionCHAPAuth: true,
		SecretRef: &v1.SecretReference{Name: "vm-chap", Namespace: space}}})}
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}}
	d.create(p)
	found := d.ready("device")
	if got := d.run("docker inspect -f '{{range .HostConfig.Devices}}{{.PathInContainer}} {{end}}' " + container(found)); !strings.Contains(got, "/dev/disk") {
		d.Errorf("the container has the devices %q", got)
	}
	d.remove("device")
	d.unclaim("device")
}

// iscsiGone: a pod whose target has gone ends, others do not notice, and the disk is released when the target is back.
func iscsiGone(d *days) {
	d.create(d.withDisk("stranded", lun(1), "shell", "-c", "write /disk/stranded written; sleep"))
	d.ready("stranded")
	d.run("nft add table inet gone && nft 'add chain inet gone in { type filter hook input priority 0; }' && nft add rule inet gone in tcp dport 3260 drop")
	begin := time.Now()
	d.remove("stranded")
	d.Logf("the pod was gone after %.0f s", time.Since(begin).Seconds())
	d.finished(d.pod("beside", "shell", "-c", "write /file x"))
	d.run("nft delete table inet gone")
	d.remove("beside")
	d.eventually(6*time.Minute, "the node logs out", func(ctx context.Context) error {
		out, err := d.vm.Run(ctx, "iscsiadm -m session 2>&1 || true")
		if err == nil && out != "iscsiadm: No active sessions.\n" {
			err = fmt.Errorf("sessions: %s", out)
		}
		return err
	})
	if err := d.client.CoreV1().Secrets(space).Delete(d.Context(), "vm-chap", metav1.DeleteOptions{}); err != nil {
		d.Error(err)
	}
}
