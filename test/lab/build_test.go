package lab

import (
	"path"
	"slices"
	"testing"
)

// TestProgramNames: go build names the programs of several packages by their directories, so a list of other names
// would start programs that do not exist.
func TestProgramNames(t *testing.T) {
	all := append(tools(), own, csiDriver, metricsServer, suite, kubeadm, containerd2, runc, sidecars, mockDriver)
	for _, name := range ControlPlanes() {
		all = append(all, controlPlane(name))
	}
	for _, r := range releases() {
		all = append(all, r.tool())
	}
	for _, tool := range all {
		if len(tool.packages) == 1 {
			continue // named by -o
		}
		var built []string
		for _, p := range tool.packages {
			built = append(built, path.Base(p))
		}
		if !slices.Equal(built, tool.names) {
			t.Errorf("module %q builds %q, the names are %q", tool.module, built, tool.names)
		}
	}
}

func TestCheckProxyLacks(t *testing.T) {
	for _, c := range []struct{ lacks, mode, want string }{
		{"", "", ""}, {"", "connect", ""}, {"cgroup2", "auto", ""}, {"bpffs", "auto", ""}, {"rights", "connect", ""},
		{"rights", "", `PROXY_LACKS=rights needs PROXY_MODE=auto or connect, got "": others always relay`},
		{"bpf", "auto", `PROXY_LACKS: got "bpf", want one of bpffs, cgroup2, rights, or nothing`},
	} {
		got := ""
		if err := CheckProxyLacks(c.lacks, c.mode); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q, %q: got %q, want %q", c.lacks, c.mode, got, c.want)
		}
	}
}

func TestCheckStorage(t *testing.T) {
	for name, want := range map[string]string{
		"": "", StorageCSI: "",
		"nfs": `STORAGE: got "nfs", want csi, or nothing for a cluster without provisioned volumes`,
	} {
		got := ""
		if err := CheckStorage(name); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestCheckControlPlane(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "1.33": "", "1.37": "", "1.20": `CONTROL_PLANE: got "1.20", want one of 1.33, 1.37, or nothing for 1.36.3`,
	} {
		got := ""
		if err := CheckControlPlane(name); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

// TestControlPrograms: another control plane has its programs in another directory; etcd is the same.
func TestControlPrograms(t *testing.T) {
	c := New(t.TempDir(), t.Output())
	for release, want := range map[string]string{"": ".", "1.33": "control-plane-1.33", "1.37": "control-plane-1.37"} {
		c.ControlPlane = release
		for name, dir := range map[string]string{"etcd": ".", "kube-apiserver": want, "kube-controller-manager": want, "kube-scheduler": want} {
			if got := c.Control.Process(name).argv()[0]; got != path.Join(c.Tools, dir, name) {
				t.Errorf("CONTROL_PLANE=%s: %s is %s", release, name, got)
			}
		}
	}
}

// TestStorageProcesses: without STORAGE none of its processes is wanted, with it all are.
func TestStorageProcesses(t *testing.T) {
	c := New(t.TempDir(), t.Output())
	for _, storage := range []string{"", StorageCSI} {
		c.Storage = storage
		processes := c.storageProcesses()
		for _, node := range c.Nodes {
			processes = append(processes, node.Process("csi-node"))
		}
		if len(processes) != len(c.Nodes)+1+len(sidecars.names) {
			t.Errorf("%d processes", len(processes))
		}
		for _, p := range processes {
			if p.wanted() != (storage == StorageCSI) {
				t.Errorf("STORAGE=%s: %s is wanted: %t", storage, p.Name, p.wanted())
			}
		}
	}
}
