package usage

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/logs"
)

// mountTable is from a host with Docker 29: a running container of containerd's store, one of containerd itself, and a volume.
const mountTable = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
60 22 0:45 / /var/lib/docker/rootfs/overlayfs/c1 rw,relatime shared:30 - overlay overlay rw,lowerdir=/data/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/3/fs:/data/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs,upperdir=/data/con\040tainerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs,workdir=/data/con\040tainerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/work
61 22 0:46 / /run/containerd/io.containerd.runtime.v2.task/k8s.io/c2/rootfs rw - overlay overlay rw,lowerdir=/x,upperdir=/elsewhere/io.containerd.snapshotter.v1.overlayfs/snapshots/8/fs,workdir=/y
62 22 8:2 / /var/lib/docker/rootfs/overlayfs/c3 rw - ext4 /dev/sdb rw
63 22 0:47 / /var/lib/docker/rootfs/overlayfs/c4 ro - overlay overlay ro,lowerdir=/x:/y
short
`

func TestSnapshotsOf(t *testing.T) {
	got := snapshotsOf(mountTable, "/var/lib/docker")
	if len(got.layers) != 1 || got.layers["c1"] != "/data/con tainerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs" || got.store != "/data/con tainerd" {
		t.Errorf("%+v", got)
	}
	if got := snapshotsOf(mountTable, "/var/lib/other"); len(got.layers) != 0 || got.store != "" {
		t.Errorf("mounts of another engine count: %+v", got)
	}
}

// TestImageRoot: on an engine with containerd's store the images' file system is containerd's, once a container shows it.
func TestImageRoot(t *testing.T) {
	m := overEngine(t, dockertest.Options{Version: "29.1.0", APIVersion: "1.51", Snapshotter: "overlayfs"})
	m.exists = func(string) bool { return false }
	m.mounts = func() (string, error) { return "", errors.New("denied") }
	if got, err := m.ImageRoot(t.Context()); err == nil {
		t.Errorf("without a mount table the root is %q", got)
	}
	for _, step := range []struct{ table, want string }{{"", "/var/lib/docker"}, {mountTable, "/data/con tainerd"}, {"", "/data/con tainerd"}} {
		m.mounts = func() (string, error) { return step.table, nil }
		if got, err := m.ImageRoot(t.Context()); err != nil || got != step.want {
			t.Errorf("root %q, %v, want %q", got, err, step.want)
		}
	}
	layer := m.layers()
	m.mounts = func() (string, error) { return mountTable, nil }
	if got := layer("c1"); got != "/data/con tainerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs" {
		t.Errorf("layer of a running container: %q", got)
	}
	if got := layer("c9"); got != "" {
		t.Errorf("layer of one that does not run: %q", got)
	}

	graph := overEngine(t, dockertest.Options{})
	graph.mounts = func() (string, error) { return mountTable, nil }
	if got, err := graph.ImageRoot(t.Context()); err != nil || got != "/var/lib/docker" {
		t.Errorf("root with a graph driver: %q, %v", got, err)
	}
	if got := graph.layers()("c1"); got != "" {
		t.Errorf("layer with a graph driver: %q", got)
	}
}

// TestImageRootBeforeContainers: without a running container containerd's root is a usual one that has the snapshotter's directory.
func TestImageRootBeforeContainers(t *testing.T) {
	const system, own = "/var/lib/containerd", "/var/lib/docker/containerd/daemon"
	for _, test := range []struct{ socket, has, want string }{
		{"/run/containerd/containerd.sock", system, system},
		{"/run/containerd/containerd.sock", own, "/var/lib/docker"}, // left by an earlier installation
		{"/var/run/docker/containerd/containerd.sock", own, own},
		{"/run/elsewhere.sock", system, "/var/lib/docker"},
		{"", own, own},
	} {
		m := overEngine(t, dockertest.Options{Version: "29.1.0", APIVersion: "1.51", Snapshotter: "overlayfs", Containerd: test.socket})
		m.mounts = func() (string, error) { return "", nil }
		m.exists = func(file string) bool { return file == test.has+"/io.containerd.snapshotter.v1.overlayfs" }
		if got, err := m.ImageRoot(t.Context()); err != nil || got != test.want {
			t.Errorf("containerd at %q, files in %s: root %q, %v, want %q", test.socket, test.has, got, err, test.want)
		}
	}
}

// overEngine is a Meter of a fake engine, whose info it has already read.
func overEngine(t *testing.T, opts dockertest.Options) *Meter {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: dockertest.New(opts)}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	e, err := engine.New(engine.Config{Host: "unix://" + socket})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	return New(e, logs.New(e, "linux", ""), "linux")
}
