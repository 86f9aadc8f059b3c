package kubelet

import (
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/pod"
)

// TestEngineFaults: what is wrong with the engine is an Event of the Node, once, and again when it was right in between.
func TestEngineFaults(t *testing.T) {
	fake := dockertest.New(dockertest.Options{NoRuntime: true})
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	e, err := docker.New(docker.Config{Host: "tcp://" + server.Listener.Addr().String(), Platform: pod.Platform{OS: "linux"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	faults := &engineFaults{driver: "systemd", tell: func(kind, reason, _ string) { got = append(got, kind+" "+reason) }}
	node := nodeEngine{engine: e, faults: faults, platform: pod.Platform{OS: "linux"}}
	look := func(want ...string) {
		t.Helper()
		got = nil
		for range 2 {
			_, _ = node.Runtime(t.Context())
		}
		if !slices.Equal(got, want) {
			t.Errorf("Events %q, want %q", got, want)
		}
	}
	look("Warning RuntimeMissing", "Warning CgroupDriverDiffers")
	fake.Upgrade("17.03.2-ce", "1.27", "1.12")
	look("Warning EngineTooOld")
	fake.Upgrade("31.0.0", "1.64", "1.60")
	look("Warning EngineTooNew")
	fake.Upgrade("28.5.2", "1.51", "1.24")
	look("Warning RuntimeMissing", "Warning CgroupDriverDiffers")
	server.Close()
	look() // an engine that is away is no fault of these
}
