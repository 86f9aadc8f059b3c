package cni

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSuits: a network that cannot work on this host is refused in one line with the file, the problem and the remedy.
func TestSuits(t *testing.T) {
	const server2016, server2022 = 14393, 20348
	for _, test := range []struct {
		name, plugins string
		build         int    // 0: Linux
		has           string // programs
		want          string // "": no error
	}{
		{"win-bridge", `{"type": "win-bridge", "ipam": {"type": "host-local"}}`, server2022, "win-bridge host-local", ""},
		{"addresses of HNS", `{"type": "win-bridge"}`, server2022, "win-bridge", ""},
		{"api version 1", `{"type": "win-overlay", "apiVersion": 1, "ipam": {"type": "host-local"}}`, server2022, "win-overlay host-local", ""},
		{"api version 2", `{"type": "win-bridge", "apiVersion": 2}`, server2022, "win-bridge", `has "apiVersion": 2 for win-bridge, which attaches pods of containerd; Docker needs "apiVersion": 1`},
		{"api version of others", `{"type": "azure-vnet", "apiVersion": 2}`, server2022, "azure-vnet", ""},
		{"no win-bridge", `{"type": "win-bridge"}`, server2022, "", `needs the plugin "win-bridge", which is not in BIN (--cni-bin-dir)`},
		{"no IPAM", `{"type": "win-overlay", "ipam": {"type": "host-local"}}`, server2022, "win-overlay", `needs the IPAM plugin "host-local", which is not in BIN (--cni-bin-dir)`},
		{"IPAM of others", `{"type": "antrea", "ipam": {"type": "antrea"}}`, server2022, "antrea", ""},
		{"of Linux", `{"type": "bridge", "ipam": {"type": "host-local"}}`, server2022, "host-local", `needs the plugin "bridge", which exists for Linux only; on Windows use win-bridge or win-overlay`},
		{"portmap", `{"type": "win-bridge"}, {"type": "portmap"}`, server2022, "win-bridge", `needs the plugin "portmap", which exists for Linux only; on Windows remove it: the kubelet serves hostPorts itself`},
		{"on Linux", `{"type": "bridge"}`, 0, "", `needs the plugin "bridge", which is not in BIN (--cni-bin-dir)`},
		{"win-bridge on 2016", `{"type": "win-bridge"}`, server2016, "win-bridge", ""},
		{"win-overlay on 2016", `{"type": "win-overlay"}`, server2016, "win-overlay", `needs overlay networks, which Windows has from Server 2019 (build 17763) on; this is build 14393: use win-bridge`},
		{"no number", `{"type": "win-bridge", "apiVersion": "two"}`, server2022, "win-bridge", `: plugin "win-bridge": json: cannot unmarshal string`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t, `{"cniVersion": "0.4.0", "name": "pods", "plugins": [`+test.plugins+`]}`)
			bin := s.cfg.BinDirs[1]
			for name := range strings.FieldsSeq(test.has) {
				if err := os.WriteFile(filepath.Join(bin, name), nil, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cfg := Config{ConfDir: s.cfg.ConfDir, BinDirs: []string{bin}, WindowsBuild: test.build}
			name, file, err := Find(cfg)
			want := strings.ReplaceAll(test.want, "BIN", bin)
			switch {
			case want == "" && (err != nil || name != "pods" || file != filepath.Join(cfg.ConfDir, "10-net.conflist")):
				t.Errorf("%q, %q, %v", name, file, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `the network "pods" of `+file) || strings.Contains(err.Error(), "\n")):
				t.Errorf("%v\nwant %s", err, want)
			}
		})
	}
}

// TestCollectOnWindows: a Windows container's network is released with its original Netns, since plugins leave the endpoint without one. On Linux the
// namespace is gone with the container.
func TestCollectOnWindows(t *testing.T) {
	for _, test := range []struct{ netns, want string }{{Unshared, Unshared}, {"/proc/1/ns/net", ""}} {
		s := newStage(t, `{"cniVersion": "0.4.0", "name": "net", "plugins": [{"type": "fake", "leases": "LEASES", "behave": "windows"}]}`)
		p := s.plugins()
		a := attachment("c1")
		a.Netns = test.netns
		if _, err := p.Add(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if err := p.Collect(t.Context(), func(context.Context, []string) (map[string]bool, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(s.leaseDir(), "c1.netns"))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: DEL with CNI_NETNS %q, %v; want %q", test.netns, got, err, test.want)
		}
	}
}
