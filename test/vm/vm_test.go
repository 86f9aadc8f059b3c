// Package vm tests a node on a machine with its own kernel, systemd, cgroup v2 and AppArmor: Debian 13 under QEMU, whose processor is emulated.
//
//	hack/vm-image.sh -> disk -> Machine -> release's package -> kubelet node join -> the cluster of make up
//
// The subtests follow each other as an administrator's days do. What one needs of an earlier one it says by failing.
package vm

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/winkube/winkube/test/lab"
)

// days is what the subtests share.
type days struct {
	*testing.T
	cluster *lab.Cluster
	client  *kubernetes.Clientset
	vm      *lab.Machine
	began   time.Time
	lines   *string // that pod keeper has in each of its volumes
}

const space = "default"

// TestVM needs root, the cluster of make up, and a release in _output/vm/release; make test-vm makes all.
func TestVM(t *testing.T) {
	if os.Getenv("WINKUBE_VM") == "" {
		t.Skip("make test-vm runs it")
	}
	root, err := lab.FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	d := &days{T: t, cluster: lab.New(root, t.Output()), began: time.Now(), lines: new(string)}
	if d.client, err = d.cluster.Client(); err != nil {
		t.Fatal(err)
	}
	d.vm = d.cluster.NewMachine(filepath.Join(root, "_output/vm"))
	d.must(d.vm.Create(t.Context()))
	t.Cleanup(func() {
		if t.Failed() {
			d.diagnose()
		}
		if err := d.vm.PowerOff(); err != nil {
			t.Error(err)
		}
		d.clean()
	})
	for _, part := range []struct {
		name  string
		do    func(*days)
		vital bool // the others make no sense without it
	}{
		{"boot", boot, true},
		{"install the package", install, true},
		{"join", join, true},
		{"serve", serve, true},
		{"limits with cgroup v2", limits, false},
		{"out of memory", outOfMemory, false},
		{"privileged", privileged, false},
		{"AppArmor", appArmor, false},
		{"NFS", nfs, false},
		{"NFS server gone", nfsGone, false},
		{"iSCSI", iscsi, false},
		{"iSCSI target gone", iscsiGone, false},
		{"two portals", twoPortals, false},
		{"TestRealTarget", realTarget, false},
		{"local disks", localDisks, false},
		{"journal by NodeLogQuery", journal, false},
		{"28,000 idle connections", crowd, false},
		{"upstream's tests", upstream, false},
		{"kubelet killed", kubeletKilled, false},
		{"swap", swap, false},
		{"pressure", pressure, false},
		{"Docker restarted", dockerRestarted, false},
		{"Docker upgraded to 29", dockerUpgraded, false},
		{"package upgraded", upgraded, false},
		{"volumes", volumes, false},
		{"reboot", reboot, false},
		{"volumes after the reboot", volumesAfterReboot, false},
		{"power cut", powerCut, false},
		{"volumes after the power cut", volumesAfterPowerCut, false},
		{"leave and purge", leave, false},
	} {
		begin, ran := time.Now(), false
		ok := t.Run(part.name, func(t *testing.T) {
			ran = true
			of := *d
			of.T = t
			part.do(&of)
		})
		if ran { // -run may leave it out
			t.Logf("%-26s %-6v %5.0f s", part.name, map[bool]string{true: "ok", false: "FAILED"}[ok], time.Since(begin).Seconds())
		}
		if !ok && part.vital {
			break
		}
	}
	t.Logf("in all %.0f s", time.Since(d.began).Seconds())
}

func boot(d *days) {
	d.must(d.vm.Start())
	d.comesUp("")
	if got := d.run("stat -fc %T /sys/fs/cgroup; cat /sys/module/apparmor/parameters/enabled; ps -p 1 -o comm="); got != "cgroup2fs\nY\nsystemd\n" {
		d.Errorf("the machine has %q, want cgroup v2, AppArmor and systemd", got)
	}
	d.Logf("%s", d.run("uname -r; docker version --format 'Docker {{.Server.Version}}'; docker info --format '{{.CgroupDriver}} {{.CgroupVersion}} {{.Driver}}'"))
}

// install installs a release as the guide says. Another package, of a lower version, stands for the release before.
func install(d *days) {
	files, err := filepath.Glob(filepath.Join(d.vm.Dir, "release", "winkube_*_amd64.deb"))
	if err != nil || len(files) != 1 {
		d.Fatalf("packages %q, %v; want one", files, err)
	}
	d.must(d.vm.Send(d.Context(), files[0], "/root/new.deb"))
	d.run("cd /root && dpkg-deb -R new.deb old && sed -i 's/^Version: .*/Version: 0.0.1-1/' old/DEBIAN/control && dpkg-deb --root-owner-group -Zgzip -z1 -b old old.deb >/dev/null && rm -r old && dpkg -i old.deb >&2")
	if got := d.run("systemctl is-enabled kubelet proxy || true; systemctl is-active kubelet proxy || true"); got != "disabled\ndisabled\ninactive\ninactive\n" {
		d.Errorf("after the installation kubelet and proxy are %q; want nothing started", got)
	}
	if got := d.run("systemd-analyze verify kubelet.service proxy.service kubelet-cri.service 2>&1 || true"); got != "" {
		d.Errorf("systemd says of our units: %s", got)
	}
	images, err := d.vm.Images()
	d.must(err)
	for _, file := range images {
		d.must(d.vm.Send(d.Context(), file, "/root/image.tar"))
		d.run("docker load -q -i /root/image.tar && rm /root/image.tar")
	}
}

// join has the guide's command. The infra container's image is named because the cluster has no registry. The API server verifies the kubelet's certificate,
// so the kubelet requests it and an administrator approves.
func join(d *days) {
	ctx := d.Context()
	d.must(d.cluster.UpKubeadm(ctx))
	if _, err := d.cluster.Kubectl(ctx, "apply", "-f", filepath.Join(d.cluster.Root, "build/kubernetes/node-join.yaml")); err != nil {
		d.Fatal(err)
	}
	arguments, err := d.cluster.JoinArguments()
	d.must(err)
	line := "kubelet node join " + arguments + " -- --pod-infra-container-image=" + lab.PauseImage + " --rotate-server-certificates"
	d.Logf("$ %s\n%s", line, d.run(line))
	d.nodeReady(3 * time.Minute)
	d.approve()
	node, err := d.client.CoreV1().Nodes().Get(ctx, d.vm.Name, metav1.GetOptions{})
	d.must(err)
	info := node.Status.NodeInfo
	d.Logf("%s, kernel %s, %s, %s", info.OSImage, info.KernelVersion, info.ContainerRuntimeVersion, info.KubeletVersion)
	if got := d.run("systemctl is-enabled kubelet proxy; systemctl is-active kubelet proxy"); got != "enabled\nenabled\nactive\nactive\n" {
		d.Errorf("after joining kubelet and proxy are %q", got)
	}
}

// kubeletKilled: systemd starts the kubelet again, and no container notices.
func kubeletKilled(d *days) {
	before := d.containers()
	pid := d.run("systemctl show -P MainPID kubelet")
	d.run("systemctl kill -s KILL kubelet proxy")
	d.eventually(2*time.Minute, "systemd starts the kubelet again", func(ctx context.Context) error {
		now, err := d.vm.Run(ctx, "systemctl show -P MainPID kubelet")
		if err == nil && (now == pid || now == "0\n") {
			err = fmt.Errorf("its process is %s", now)
		}
		return err
	})
	d.nodeReady(2 * time.Minute)
	d.lives(before)
}

// dockerRestarted: with live-restore no container notices.
func dockerRestarted(d *days) {
	before := d.containers()
	d.run("systemctl restart docker")
	d.nodeReady(2 * time.Minute)
	d.lives(before)
}

// upgraded: apt replaces the package, and no container notices.
func upgraded(d *days) {
	before := d.containers()
	pid := d.run("systemctl show -P MainPID kubelet")
	d.Logf("%s", d.run("apt-get install -y /root/new.deb 2>&1 | tail -n 5; dpkg-query -W winkube"))
	if now := d.run("systemctl show -P MainPID kubelet"); now == pid || now == "0\n" {
		d.Errorf("the kubelet's process was %s, is %s; want the new program running", pid, now)
	}
	d.nodeReady(2 * time.Minute)
	d.lives(before)
}

// reboot: the kubelet holds the host's shutdown until pods have ended, and they run again after it. The kubelet gives logind the time.
func reboot(d *days) {
	d.run("sed -i 's/KUBELET_EXTRA_ARGS=\"/&--shutdown-grace-period=60s --shutdown-grace-period-critical-pods=10s /' /etc/default/kubelet && mkdir -p /srv/ends")
	d.run("systemctl restart kubelet")
	d.nodeReady(2 * time.Minute)
	p := d.pod("polite", "sleep")
	p.Spec.TerminationGracePeriodSeconds = new(int64(30))
	p.Spec.Volumes = []v1.Volume{{Name: "ends", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv/ends"}}}}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "ends", MountPath: "/ends"}}
	p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/sample", "write", "/ends/polite", "ended"}}}}
	d.create(p)
	d.ready("polite")
	d.eventually(time.Minute, "the kubelet holds the shutdown", func(ctx context.Context) error {
		out, err := d.vm.Run(ctx, "systemd-inhibit --list --no-pager --no-legend")
		if err == nil && !strings.Contains(out, "kubelet") {
			err = fmt.Errorf("inhibitors: %s", out)
		}
		return err
	})
	if got := d.run("busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec"); got != "t 60000000\n" {
		d.Errorf("logind waits for %q", got)
	}
	boot := strings.TrimSpace(d.run("cat /proc/sys/kernel/random/boot_id"))
	// By systemd, because the connection ends with the machine.
	d.run("systemd-run --quiet --on-active=1 systemctl reboot")
	d.comesUp(boot)
	if got := d.run("cat /srv/ends/polite"); !strings.HasPrefix(got, "ended") {
		d.Errorf("the pod's preStop hook has left %q: it was not ended in time", got)
	}
	d.nodeReady(3 * time.Minute)
	d.revive(d.pod("web", "serve", "8080"))
	d.remove("polite")
}

// powerCut: the power fails while pods start. Afterwards each pod runs once, and nothing is left of earlier attempts.
func powerCut(d *days) {
	before := strings.TrimSpace(d.run("cat /proc/sys/kernel/random/boot_id"))
	var names []string
	for i := range 6 {
		name := fmt.Sprintf("burst-%d", i)
		names = append(names, name)
		d.create(d.pod(name, "serve", "8080"))
	}
	d.eventually(2*time.Minute, "the first of the pods runs", func(ctx context.Context) error {
		pods, err := d.client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{LabelSelector: "vm=yes"})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if strings.HasPrefix(p.Name, "vm-burst-") && p.Status.Phase == v1.PodRunning {
				return nil
			}
		}
		return errors.New("none does")
	})
	d.must(d.vm.PowerOff())
	d.must(d.vm.Start())
	d.comesUp(before)
	d.nodeReady(3 * time.Minute)
	for _, name := range append(names, "web") {
		d.ready(name)
	}
	d.eventually(2*time.Minute, "each pod has one infra container and one main container", func(ctx context.Context) error {
		out, err := d.vm.Run(ctx, `docker ps --format '{{.Label "io.kubernetes.pod.name"}}' | sort | uniq -c | awk '{print $2, $1}'`)
		if err != nil {
			return err
		}
		for _, name := range append(names, "web") {
			if !strings.Contains(out, "vm-"+name+" 2\n") {
				return fmt.Errorf("running containers by pod:\n%s", out)
			}
		}
		return nil
	})
	d.remove(names...)
}

// leave: node leave with --remove-data and a purge leave nothing of ours.
func leave(d *days) {
	d.remove("web")
	d.Logf("%s", d.run("kubelet node leave --remove-data && apt-get purge -y winkube 2>&1 | tail -n 1"))
	if got := d.run("docker ps -aq; ls -d /usr/bin/kubelet /usr/bin/proxy /var/lib/kubelet /etc/default/kubelet /etc/default/proxy /etc/kubernetes/kubelet.conf /etc/systemd/logind.conf.d/99-winkube.conf 2>/dev/null; ls -d /sys/fs/cgroup/kubepods.slice 2>/dev/null; nft list tables | grep winkube; grep kubelet /proc/mounts; true"); got != "" {
		d.Errorf("left: %s", got)
	}
}
