package stats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

// places are volumes of pods below a directory.
type places string

func (p places) Places(of *v1.Pod) ([]disk.Place, error) {
	return []disk.Place{{Volume: "v", EmptyDir: true, Path: filepath.Join(string(p), string(of.UID), "volumes/v")}}, errors.New("another volume is not ready")
}

func (p places) Dir(uid types.UID) string { return filepath.Join(string(p), string(uid)) }

// layers is an engine below a directory.
type layers struct {
	root  string
	asked []string
}

func (l *layers) Files(_ context.Context, ids []string) (map[string]docker.Files, error) {
	l.asked = ids
	return map[string]docker.Files{"new": {Layer: filepath.Join(l.root, "layer"), Volumes: []string{filepath.Join(l.root, "anonymous")},
		Mounted: []string{filepath.Join(l.root, "engine/hostname")}, Logs: 7, LogFiles: 1}}, errors.New("one is gone")
}

func (l *layers) DiskUsage(context.Context, string) (docker.DiskUsage, error) {
	return docker.DiskUsage{}, nil
}

func (l *layers) ImageRoot(context.Context) (string, error) {
	return filepath.Join(l.root, "engine"), nil
}

// TestDisks: for each container the newest attempt counts, with all places that it can write to; for other pods only volumes.
func TestDisks(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a/volumes/v/f", "a/containers/web/termination-3", "b/volumes/v/f", "b/containers/web/termination-0", "layer/f", "anonymous/f", "engine/hostname"} {
		name = filepath.Join(root, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, make([]byte, 100_000), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	crew := disk.NewCrew(clock.RealClock{}, 0)
	engine := &layers{root: root}
	d := &Disks{root: root, crew: crew, meter: disk.NewMeter(crew, disk.Parts{}), volumes: places(root), engine: engine}
	view := func(uid types.UID) pod.View {
		return pod.View{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}, Observed: pod.Observed{Containers: []pod.Container{
			{ID: "new", Name: "web"}, {ID: "old", Name: "web"}, {ID: "gone", Name: "init"}}}}
	}
	got := d.Pods(t.Context(), disk.Terms{Patience: time.Minute}, []pod.View{view("a")}, []pod.View{view("b")})
	if want := []string{"new", "gone"}; !slices.Equal(engine.asked, want) {
		t.Errorf("asked for %q, want %q", engine.asked, want)
	}
	about := func(what string, got, want uint64) {
		t.Helper()
		if got < want || got > want+50_000 {
			t.Errorf("%s: %d bytes, want %d", what, got, want)
		}
	}
	about("a", got["a"].Ephemeral().Bytes, 500_007)
	about("a's files", got["a"].Files.Bytes, 200_000)
	about("b", got["b"].Ephemeral().Bytes, 100_000)
	if len(got["a"].Containers) != 1 || got["a"].Containers["new"].Name != "web" {
		t.Errorf("containers %+v", got["a"].Containers)
	}
	if apart, err := d.apart(t.Context(), root, filepath.Join(root, "a")); apart || err != nil {
		t.Errorf("apart %v, %v", apart, err)
	}
	if apart, err := d.ImagesApart(t.Context()); apart || err != nil {
		t.Errorf("images apart %v, %v", apart, err)
	}
	node, err := d.NodeDisk(t.Context())
	images, err2 := d.ImageDisk(t.Context())
	if err != nil || err2 != nil || node.Capacity == 0 || node.Capacity != images.Capacity {
		t.Errorf("node %+v, %v; images %+v, %v", node, err, images, err2)
	}
	none := filepath.Join(root, "none")
	_, want := host.SameDisk(root, none) // Windows compares only the drives' names
	if _, err := d.apart(t.Context(), root, none); (err == nil) != (want == nil) {
		t.Errorf("a directory that is not there: %v, want %v", err, want)
	}
}
