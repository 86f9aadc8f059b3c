package vm

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// makeDisks runs the guide's commands for a disk of the node: a logical volume with ext4, and another with btrfs, whose subvolumes have a quota.
func makeDisks(d *days) {
	d.run("test -e /dev/data/files || {\nset -e\n" + d.guide("A second disk, `/dev/vdb`") + "} >&2")
}

// local is a directory of the machine.
func local(path string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}
}

// localDisks: a pod cannot write more than its volume's quota, and others do not notice.
func localDisks(d *days) {
	makeDisks(d)
	d.Logf("%s", d.run("lvs; findmnt -t ext4,btrfs -o TARGET,SOURCE,FSTYPE,SIZE; btrfs --version"))
	full, beside := d.claim("full", v1.PersistentVolumeFilesystem, local("/srv/shares/a")), d.claim("beside", v1.PersistentVolumeFilesystem, local("/srv/shares/b"))
	d.create(d.withDisk("writer", d.claim("writer", v1.PersistentVolumeFilesystem, local("/srv/files/a")), "shell", "-c", "append /disk/lines began; sleep"))
	writer := d.ready("writer")
	if got := d.finished(d.withDisk("full", full, "fill", "/disk/file", "67108864")); !strings.Contains(got, "disk quota exceeded") && !strings.Contains(got, "no space left") {
		d.Errorf("a pod that writes 64 MiB to 32 says %q", got)
	} else {
		d.Logf("the pod says: %s", got)
	}
	d.Logf("%s", d.run("sync; btrfs qgroup show -r /srv/shares; df -h /srv/files /srv/shares; ls -l /srv/shares/a"))
	if got := d.finished(d.withDisk("beside", beside, "fill", "/disk/file", "16777216")); got != "" {
		d.Errorf("a pod beside it says %q", got)
	}
	d.run(inside(writer, "append /disk/lines beside"))
	d.remove("full", "beside", "writer")
	d.unclaim("full", "beside", "writer")
	if got := d.run("cat /srv/files/a/lines; stat -c %s /srv/shares/b/file; rm -r /srv/files/a/* /srv/shares/*/*"); got != "began\nbeside\n16777216\n" {
		d.Errorf("after the pods' end the volumes have %q", got)
	}
}
