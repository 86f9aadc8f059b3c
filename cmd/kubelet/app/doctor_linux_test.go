package app

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/doctor"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/network"
	netdoctor "github.com/winkube/winkube/pkg/network/doctor"
	"github.com/winkube/winkube/pkg/pod"
)

// fakeEngine serves a simulated engine and returns its address.
func fakeEngine(t *testing.T, opts dockertest.Options) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: dockertest.New(opts)}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "unix://" + socket
}

// TestDoctorPlansForRelease: `kubelet network doctor` plans for the engine's release as the kubelet does, also if its version is no number.
func TestDoctorPlansForRelease(t *testing.T) {
	for _, version := range []string{"29.1.0", "dev", "library-import"} {
		o := &doctorOptions{endpoint: fakeEngine(t, dockertest.Options{Version: version, APIVersion: "1.51"}), podCIDRs: []string{"10.244.1.0/24"}}
		s := netdoctor.Symptoms{Config: network.Config{Mode: network.HostGateway, Platform: pod.Platform{OS: "linux", Arch: "amd64", SharedNetwork: true}, NodeIPs: []netip.Addr{netip.MustParseAddr("192.168.1.5")}}}
		if err := o.plan(t.Context(), &s, host.Facts{Hostname: "node1"}); err != nil {
			t.Fatal(err)
		}
		if got := s.State.Network.Options["com.docker.network.bridge.gateway_mode_ipv4"]; got != "nat-unprotected" {
			t.Errorf("engine %s with API 1.51: the plan has gateway mode %q; want that of release 28 and later", version, got)
		}
	}
}

// TestDoctorDisks: where containerd keeps the images, its disk is checked beside the engine's.
func TestDoctorDisks(t *testing.T) {
	for _, test := range []struct {
		engine, images string
		want           []doctor.Disk
	}{
		{"", "", []doctor.Disk{{What: "the agent's directory", Path: "/var/lib/kubelet"}}},
		{"/var/lib/docker", "/var/lib/docker", []doctor.Disk{{What: "the agent's directory", Path: "/var/lib/kubelet"}, {What: "the engine's images and containers", Path: "/var/lib/docker"}}},
		{"/var/lib/docker", "/data/containerd", []doctor.Disk{
			{What: "the agent's directory", Path: "/var/lib/kubelet"}, {What: "the engine's logs and volumes", Path: "/var/lib/docker"}, {What: "containerd's images and containers", Path: "/data/containerd"},
		}},
	} {
		got := disks("/var/lib/kubelet", test.engine, test.images)
		if len(got) != len(test.want) {
			t.Errorf("%+v: got %+v", test, got)
			continue
		}
		for i := range got {
			if got[i] != test.want[i] {
				t.Errorf("disk %d of %+v is %+v", i, test, got[i])
			}
		}
	}
}

// TestDoctorCgroupDriver: the doctor reads the kubelet's configuration as the kubelet does.
func TestDoctorCgroupDriver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{file: "systemd", "": ""} {
		if got, err := cgroupDriver(name, "linux"); err != nil || got != want {
			t.Errorf("file %q: driver %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := cgroupDriver(file+"x", "linux"); err == nil || !strings.Contains(err.Error(), file+"x") {
		t.Errorf("a missing file: %v", err)
	}
}
