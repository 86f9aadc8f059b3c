package docker

import (
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/dockertest"
)

// TestDiskUsageReal measures a container that has written a file and a log line.
func TestDiskUsageReal(t *testing.T) {
	r := realRig(t, nil)
	id := r.run(r.pod("usage", []string{"fill", "/tmp/f", "3000000"}))[0]
	out := dockertest.NewBuffer()
	go func() { _ = r.Logs(t.Context(), id, &v1.PodLogOptions{Follow: true}, out, out) }()
	out.Await(t, "filled\n")
	got, err := r.DiskUsage(t.Context(), id)
	if err != nil || got.Writable < 3_000_000 || got.Writable > 3_200_000 || got.LogFiles != 1 || got.Logs < 50 || got.Logs > 200 {
		t.Errorf("%+v, %v", got, err)
	}
	logs, err := r.LogUsage(t.Context(), id)
	if err != nil || logs.Logs != got.Logs || logs.Writable != 0 {
		t.Errorf("logs alone: %+v, %v", logs, err)
	}
	if _, err := r.DiskUsage(t.Context(), "no-such-container"); !cerrdefs.IsNotFound(err) {
		t.Errorf("no such container: %v", err)
	}
}
