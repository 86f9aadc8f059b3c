package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serve: a pod on the machine answers a host of the lab, and asks a Service of the cluster.
func serve(d *days) {
	d.create(d.pod("web", "serve", "8080"))
	p := d.ready("web")
	d.eventually(time.Minute, "the pod answers another node", func(ctx context.Context) error {
		out, err := d.cluster.Nodes[0].Exec(ctx, "curl", "-sS", "--max-time", "20", "http://"+p.Status.PodIP+":8080/")
		if err == nil && out == "" {
			err = errors.New("an empty answer")
		}
		return err
	})
	d.eventually(time.Minute, "the machine reaches a Service", func(ctx context.Context) error {
		service, err := d.client.CoreV1().Services(space).Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = d.vm.Run(ctx, "exec 3<>/dev/tcp/"+service.Spec.ClusterIP+"/443")
		return err
	})
}

// limits: the systemd driver puts the pod below kubepods.slice, and the kernel has its limits.
func limits(d *days) {
	p := d.pod("limits", "sleep")
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m"), v1.ResourceMemory: resource.MustParse("64Mi")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: list, Requests: list}
	d.create(p)
	found := d.ready("limits")
	slice := "/sys/fs/cgroup/kubepods.slice/kubepods-pod" + strings.ReplaceAll(string(found.UID), "-", "_") + ".slice"
	if got := d.run("cat " + slice + "/cpu.max " + slice + "/memory.max; cat " + slice + "/docker-*.scope/memory.max | sort | tail -n 1; cat /proc/$(docker inspect -f '{{.State.Pid}}' $(docker ps -qf label=io.kubernetes.pod.uid=" + string(found.UID) + " -f label=io.kubernetes.container.name=main))/oom_score_adj"); got != "25000 100000\n67108864\nmax\n-997\n" && got != "25000 100000\n67108864\n67108864\n-997\n" {
		d.Errorf("the kernel has %q for a pod with 250m and 64Mi", got)
	}
	d.remove("limits")
	if got := d.run("ls -d " + slice + " 2>&1 || true"); !strings.Contains(got, "No such file") {
		d.Errorf("the pod has ended, and %s is there: %s", slice, got)
	}
}

// outOfMemory: the kernel kills a container in its cgroup, and its status says so even if the engine does not know it, which happens with cgroup v2.
func outOfMemory(d *days) {
	const pods = 4
	missed := 0
	for i := range pods {
		name := fmt.Sprintf("oom-%d", i)
		p := d.pod(name, "hold", "209715200")
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("32Mi")}
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		d.create(p)
		found := d.until(name, "ended", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
		end := found.Status.ContainerStatuses[0].State.Terminated
		if end.Reason != "OOMKilled" || end.ExitCode != 137 {
			d.Errorf("container of %s ended with %+v, want OOMKilled and 137", name, end)
		}
		if strings.TrimSpace(d.run("docker inspect -f '{{.State.OOMKilled}}' "+strings.TrimPrefix(end.ContainerID, "docker://"))) != "true" {
			missed++
		}
		d.remove(name)
	}
	d.Logf("the engine missed %d of %d kills", missed, pods)
	if !strings.Contains(d.run("dmesg"), "Memory cgroup out of memory: Killed process") {
		d.Errorf("the kernel's log has no process that it killed")
	}
}

// privileged: such a container has all capabilities and the host's devices.
func privileged(d *days) {
	p := d.pod("privileged", "shell", "-c", "cat /proc/self/status")
	p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: new(true)}
	all := strings.TrimSpace(d.run("awk '/^CapBnd/ {print $2}' /proc/1/status"))
	if got := d.finished(p); !strings.Contains(got, "CapEff:\t"+all+"\n") {
		d.Errorf("a privileged container has other capabilities than %s:\n%s", all, got)
	}
	plain := d.pod("plain", "shell", "-c", "cat /proc/self/status")
	if got := d.finished(plain); strings.Contains(got, "CapEff:\t"+all+"\n") || !strings.Contains(got, "Seccomp:\t") {
		d.Errorf("a plain container has all capabilities:\n%s", got)
	}
	d.remove("privileged", "plain")
}

// denyWrite is a profile that allows everything but writing files.
const denyWrite = `#include <tunables/global>
profile winkube-deny-write flags=(attach_disconnected) {
  #include <abstractions/base>
  file,
  network,
  capability,
  signal,
  deny /** w,
}
`

// appArmor: containers have Docker's profile by default, and one that the host has loaded if they ask for it. It keeps them from writing.
func appArmor(d *days) {
	d.run("cat >/etc/apparmor.d/winkube-deny-write <<'PROFILE'\n" + denyWrite + "PROFILE\napparmor_parser -r /etc/apparmor.d/winkube-deny-write")
	if got := d.finished(d.pod("docker-profile", "shell", "-c", "cat /proc/self/attr/current")); !strings.Contains(got, "docker-default (enforce)") {
		d.Errorf("by default a container has the profile %q", got)
	}
	p := d.pod("deny", "shell", "-c", "cat /proc/self/attr/current; write /file x")
	p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: new("winkube-deny-write")}}
	if got := d.finished(p); !strings.Contains(got, "winkube-deny-write (enforce)") || !strings.Contains(got, "permission denied") {
		d.Errorf("with the profile the container says %q", got)
	}
	if found := d.until("deny", "ended", func(p *v1.Pod) bool { return p.Status.Phase != v1.PodRunning }); found.Status.Phase != v1.PodFailed {
		d.Errorf("a write that AppArmor forbids leaves the pod %s", found.Status.Phase)
	}
	d.remove("docker-profile", "deny")
}

func share(readOnly bool) v1.Volume {
	return v1.Volume{Name: "share", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "172.30.0.30", Path: "/srv/share", ReadOnly: readOnly}}}
}

// nfs: the kernel's NFS server, mounted by the kernel's client.
func nfs(d *days) {
	d.run("systemctl start nfs-server")
	p := d.pod("writer", "shell", "-c", "write /share/file written; sleep")
	p.Spec.Volumes = []v1.Volume{share(false)}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "share", MountPath: "/share"}}
	d.create(p)
	d.ready("writer")
	d.eventually(time.Minute, "the server has the pod's file", func(ctx context.Context) error {
		out, err := d.vm.Run(ctx, "cat /srv/share/file")
		if err == nil && !strings.HasPrefix(out, "written") {
			err = fmt.Errorf("it has %q", out)
		}
		return err
	})
	d.Logf("%s", d.run("grep ' nfs4 ' /proc/mounts"))
	vandal := d.pod("vandal", "shell", "-c", "cat /share/file; write /share/file broken")
	vandal.Spec.Volumes = []v1.Volume{share(true)}
	vandal.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "share", MountPath: "/share"}}
	if got := d.finished(vandal); !strings.HasPrefix(got, "written") || !strings.Contains(got, "read-only file system") {
		d.Errorf("a pod that may only read says %q", got)
	}
	d.remove("writer", "vandal")
	if got := d.run("grep ' nfs4 ' /proc/mounts || true; cat /srv/share/file"); !strings.HasPrefix(got, "written") {
		d.Errorf("after the pods' end there are %q; want no mounts and the file", got)
	}
}

// nfsGone: a pod whose server has gone ends, and others do not notice.
func nfsGone(d *days) {
	p := d.pod("orphan", "shell", "-c", "write /share/orphan written; sleep")
	p.Spec.Volumes = []v1.Volume{share(false)}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "share", MountPath: "/share"}}
	d.create(p)
	d.ready("orphan")
	// The firewall keeps the server silent, as a machine that is off is.
	d.run("nft add table inet gone && nft 'add chain inet gone in { type filter hook input priority 0; }' && nft add rule inet gone in tcp dport 2049 drop")
	begin := time.Now()
	d.remove("orphan")
	d.Logf("the pod was gone after %.0f s", time.Since(begin).Seconds())
	d.finished(d.pod("other", "shell", "-c", "write /file x"))
	d.run("nft delete table inet gone")
	d.remove("other")
	if got := d.run("grep ' nfs4 ' /proc/mounts || true"); got != "" {
		d.Errorf("still mounted: %s", got)
	}
}

// journal: kubectl logs of the host's services come from journald.
func journal(d *days) {
	out, err := d.client.CoreV1().RESTClient().Get().Resource("nodes").Name(d.vm.Name).SubResource("proxy").Suffix("logs/").Param("query", "docker").Param("tailLines", "5").DoRaw(d.Context())
	switch {
	case err != nil && strings.Contains(string(out)+err.Error(), "enableSystemLogQuery"):
		d.Logf("off, as by default: %s", out)
		d.run(`printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nenableSystemLogQuery: true\n' >/etc/kubernetes/kubelet.yaml
sed -i 's/KUBELET_EXTRA_ARGS="/&--config=\/etc\/kubernetes\/kubelet.yaml /' /etc/default/kubelet && systemctl restart kubelet`)
		d.eventually(2*time.Minute, "the journal of docker.service", func(ctx context.Context) error {
			out, err = d.client.CoreV1().RESTClient().Get().Resource("nodes").Name(d.vm.Name).SubResource("proxy").Suffix("logs/").Param("query", "docker").Param("tailLines", "5").DoRaw(ctx)
			return err
		})
	case err != nil:
		d.Fatalf("%s: %v", out, err)
	}
	if !strings.Contains(string(out), "dockerd") {
		d.Errorf("the journal says %q", out)
	}
}
