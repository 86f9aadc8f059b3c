package vm

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// dockerUpgraded: Docker, containerd and runc are replaced by today's, as packages do. No container notices, and all that follows runs on them.
func dockerUpgraded(d *days) {
	before := d.containers()
	programs, err := d.cluster.EnginePrograms(d.Context(), "29")
	d.must(err)
	line := "systemctl stop docker.socket docker containerd"
	for _, path := range programs {
		name := filepath.Base(path)
		d.must(d.vm.Send(d.Context(), path, "/root/"+name))
		line += " && install -m 755 /root/" + name + " $(command -v " + name + ") && rm /root/" + name
	}
	d.run(line + " && systemctl start containerd docker")
	d.nodeReady(3 * time.Minute)
	d.lives(before)
	d.Logf("%s", d.run("docker version --format 'Docker {{.Server.Version}}'; docker info --format '{{.CgroupDriver}} {{.CgroupVersion}} {{.Driver}}'; containerd --version; runc --version | head -n 1"))
	p, err := d.client.CoreV1().Nodes().Get(d.Context(), d.vm.Name, metav1.GetOptions{})
	d.must(err)
	if got := p.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(got, "docker://29.") {
		d.Errorf("the Node says %s", got)
	}
}

// swap: the kubelet starts on a host with swap, and no pod has any, with a memory limit or without.
func swap(d *days) {
	before := d.containers()
	d.run("fallocate -l 256M /swap && chmod 600 /swap && mkswap -q /swap && swapon /swap && systemctl restart kubelet")
	d.nodeReady(2 * time.Minute)
	d.create(d.pod("unlimited", "sleep"))
	limited := d.pod("limited", "sleep")
	limited.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}
	d.create(limited)
	for _, name := range []string{"unlimited", "limited"} {
		found := d.ready(name)
		slice := "/sys/fs/cgroup/kubepods.slice/*/kubepods-*pod" + strings.ReplaceAll(string(found.UID), "-", "_") + ".slice"
		if got := d.run("cat " + slice + "/memory.swap.max"); got != "0\n" {
			d.Errorf("pod %s may swap %q bytes, want 0", name, got)
		}
	}
	d.remove("unlimited", "limited")
	d.lives(before)
	d.run("swapoff /swap && rm /swap")
}

// pressure: the summary has the pressure stall information of node and pods (KEP-4205).
func pressure(d *days) {
	data, err := d.client.CoreV1().RESTClient().Get().Resource("nodes").Name(d.vm.Name).SubResource("proxy").Suffix("stats/summary").DoRaw(d.Context())
	d.must(err)
	var s summary.Summary
	d.must(json.Unmarshal(data, &s))
	if s.Node.CPU == nil || s.Node.CPU.PSI == nil || s.Node.Memory.PSI == nil || s.Node.IO == nil {
		d.Fatalf("the node's pressure is missing: %s", data)
	}
	if s.Node.CPU.PSI.Some.Total == 0 {
		d.Error("no process of an emulated machine has ever waited for its processor")
	}
	for _, p := range s.Pods {
		if p.PodRef.Name == "vm-web" {
			if p.CPU == nil || p.CPU.PSI == nil || p.Memory.PSI == nil || p.IO == nil {
				d.Errorf("the pressure of pod web is missing: %+v", p)
			}
			return
		}
	}
	d.Error("the summary lacks pod web")
}
