package vm

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// keeper is a pod that writes a line into each of its volumes when it starts: a disk with two ways, an NFS share, a logical volume of the machine.
func keeper(d *days) *v1.Pod {
	p := d.pod("keeper", "shell", "-c", "append /disk/lines began; append /share/lines began; append /files/lines began; sleep")
	files := claimed("keeper")
	files.Name = "files"
	p.Spec.Volumes = []v1.Volume{twoWays(2), share(false), files}
	for _, v := range p.Spec.Volumes {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return p
}

// volumes: pod keeper, whose storage is all on the machine and comes back with it.
func volumes(d *days) {
	makePortals(d)
	makeDisks(d)
	d.run("systemctl start nfs-server")
	d.claim("keeper", v1.PersistentVolumeFilesystem, local("/srv/files/a"))
	d.create(keeper(d))
	p := d.ready("keeper")
	d.keeps(p)
	d.note(p, "before the reboot")
}

// volumesAfterReboot: pod keeper runs with the same data. The log says what the host itself had to unmount: the kubelet releases the disk before.
func volumesAfterReboot(d *days) {
	d.Logf("%s", d.run("journalctl -b -1 --no-pager -o short-precise | grep -E 'Ending pods|not released in time|Unmount(ing|ed).*kubernetes|Stopp(ing|ed) (tgt|multipathd)' || true"))
	p := d.revive(keeper(d))
	d.keeps(p)
	d.note(p, "before the power cut")
}

// volumesAfterPowerCut: afterwards pod keeper ends, and nothing is left mounted.
func volumesAfterPowerCut(d *days) {
	d.keeps(d.ready("keeper"))
	d.remove("keeper")
	released(d)
	if got := d.run(kubeletMounts); got != "" {
		d.Errorf("still mounted: %s", got)
	}
	d.unclaim("keeper")
}

// kubeletMounts lists the mounts below the kubelet's directory, without Secrets and the like.
const kubeletMounts = "awk '$2 ~ /^.var.lib.kubelet./ && $3 != \"tmpfs\" {print $2}' /proc/mounts | sort"

// keeps checks that the pod has started once more, with all that it had in each volume, and that each is mounted once.
func (d *days) keeps(p *v1.Pod) {
	d.Helper()
	*d.lines += "began\n"
	for _, name := range []string{"disk", "share", "files"} {
		d.eventually(4*time.Minute, "volume "+name+" has what the pod wrote", func(ctx context.Context) error {
			out, err := d.vm.Run(ctx, inside(p, "cat /"+name+"/lines"))
			if err == nil && out != *d.lines {
				err = fmt.Errorf("it has %q, want %q", out, *d.lines)
			}
			return err
		})
	}
	of := "/var/lib/kubelet/pods/" + string(p.UID) + "/volumes/kubernetes.io~"
	want := []string{"/var/lib/kubelet/plugins/kubernetes.io/iscsi/iface-default/172.30.0.30:3260-" + portals + "-lun-2", of + "iscsi/disk", of + "nfs/share", ""}
	if got := d.run(kubeletMounts); got != strings.Join(want, "\n") {
		d.Errorf("mounted are\n%swant\n%s", got, strings.Join(want, "\n"))
	}
	if got := d.run("grep -c ' /srv/files ' /proc/mounts; multipath -ll | grep -c ' active ready running'"); got != "1\n2\n" {
		d.Errorf("the logical volume's mounts and the disk's ways are %q, want 1 and 2", got)
	}
}

// note adds a line to the pod's file in each volume, and has the kernel write all to the disks.
func (d *days) note(p *v1.Pod, line string) {
	d.Helper()
	d.run(inside(p, "append /disk/lines "+line) + " && " + inside(p, "append /share/lines "+line) + " && " + inside(p, "append /files/lines "+line) + " && sync")
	*d.lines += line + "\n"
}
