package usage

import (
	"slices"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/logs"
)

// TestLocate: every place where a container can write is known: its layer, the volumes of its image, and the engine's own files in it.
func TestLocate(t *testing.T) {
	in := container.InspectResponse{ContainerJSONBase: &container.ContainerJSONBase{
		HostnamePath: "/d/containers/s/hostname", HostsPath: "/d/containers/s/hosts", LogPath: "/d/containers/c/c-json.log",
		HostConfig: &container.HostConfig{LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"compress": "true"}}},
	}, Mounts: []container.MountPoint{
		{Type: mount.TypeVolume, Driver: "local", Source: "/d/volumes/a/_data"},
		{Type: mount.TypeBind, Source: "/var/lib/kubelet/pods/u/volumes/x"},
		{Type: mount.TypeVolume, Driver: "nfs", Source: "/mnt/nfs"},
	}}
	in.GraphDriver.Data = map[string]string{"UpperDir": "/d/overlay2/x/diff"}
	at := testMeter(t, "unix:///x").locate(in)
	if at.layer != "/d/overlay2/x/diff" || !slices.Equal(at.volumes, []string{"/d/volumes/a/_data"}) || at.logs == nil ||
		!slices.Equal(at.mounted, []string{"/d/containers/s/hostname", "/d/containers/s/hosts"}) {
		t.Errorf("%+v", at)
	}
	if at := testMeter(t, "tcp://127.0.0.1:1").locate(in); at.layer != "" || at.volumes != nil || at.mounted != nil || at.logs != nil {
		t.Errorf("of an engine elsewhere: %+v", at)
	}
}

func testMeter(t *testing.T, host string) *Meter {
	e, err := engine.New(engine.Config{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	return New(e, logs.New(e, "linux", ""), "linux")
}
