package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// volumesOn is what a node has of CSI volumes, by path below the kubelet's directory.
type volumesOn struct {
	records map[string]map[string]string // vol_data.json
	mounts  map[string]string            // ids of mounts: another one is another id
}

// volumesOn reads them from disk and from the kernel.
func (d *csiDriver) volumesOn() volumesOn {
	d.Helper()
	on := volumesOn{map[string]map[string]string{}, map[string]string{}}
	root := d.node.Dir("kubelet") + "/"
	for _, pattern := range []string{"plugins/kubernetes.io/csi/*/*/vol_data.json", "pods/*/volumes/kubernetes.io~csi/*/vol_data.json"} {
		files, err := filepath.Glob(root + pattern)
		d.must(err)
		for _, file := range files {
			var record map[string]string
			data, err := os.ReadFile(file)
			d.must(err)
			d.must(json.Unmarshal(data, &record))
			on.records[strings.TrimPrefix(file, root)] = record
		}
	}
	table, err := d.node.Command(context.Background(), "cat", "/proc/self/mountinfo").Output()
	d.must(err)
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line) // id, parent, device, root, mount point, ...
		if path, below := strings.CutPrefix(fields[4], root); below && strings.Contains(path, "csi") {
			on.mounts[path] = fields[0]
		}
	}
	return on
}

// without returns what must be left when the volumes of some pods have ended, and those that no other pod uses.
func (on volumesOn) without(gone ...string) volumesOn {
	ended := func(path string) bool {
		return slices.ContainsFunc(gone, func(part string) bool { return strings.Contains(path, part) })
	}
	left := volumesOn{maps.Clone(on.records), maps.Clone(on.mounts)}
	maps.DeleteFunc(left.records, func(path string, _ map[string]string) bool { return ended(path) })
	maps.DeleteFunc(left.mounts, func(path, _ string) bool { return ended(path) })
	return left
}

func (on volumesOn) String() string {
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(on.mounts)) {
		fmt.Fprintf(&b, "  mount %s %s\n", on.mounts[path], path)
	}
	for _, path := range slices.Sorted(maps.Keys(on.records)) {
		record, _ := json.Marshal(on.records[path]) // a map of strings cannot fail
		fmt.Fprintf(&b, "  %s %s\n", path, record)
	}
	return b.String()
}

// runsIn waits until a pod that another kubelet has run before runs in this engine, "docker" or "containerd".
func (s *space) runsIn(engine, name string) {
	s.Helper()
	s.eventually(3*time.Minute, "pod "+name+" runs in "+engine, func(ctx context.Context) error {
		p, err := client.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.ContainerStatuses {
			if !c.Ready || !strings.HasPrefix(c.ContainerID, engine+"://") {
				return fmt.Errorf("%s: ready %v, %+v", c.ContainerID, c.Ready, c.State)
			}
		}
		return nil
	})
}

// stagedAt returns the directory of a volume's staged mount below the kubelet's, from the records.
func (d *csiDriver) stagedAt(on volumesOn, handle string) string {
	d.Helper()
	for path, record := range on.records {
		if strings.HasPrefix(path, "plugins/") && record["volumeHandle"] == handle {
			return filepath.Dir(path)
		}
	}
	d.Fatalf("no record of staged volume %s among\n%s", handle, on)
	return ""
}

// change is a change of a node from one kubelet and engine to others, while volumes of a CSI driver are mounted.
type change struct {
	from, to string                      // whose kubelet, for the log
	engine   string                      // that of the kubelet that comes
	begin    func(context.Context) error // what runs the pods at first, after UpPeer
	end      func(context.Context) error // stops it and its containers
	move     func(context.Context) error
}

// TestFromUpstream: a node changes from upstream's kubelet with containerd to ours with Docker while volumes of a CSI driver are mounted. Pods that are
// still there get the mounts that upstream's kubelet has made. What no pod needs any more is unmounted, and no file is lost.
func TestFromUpstream(t *testing.T) {
	testChange(t, change{"upstream's", "our", "docker", func(context.Context) error { return nil }, cluster.EndPeerPods, cluster.MovePeer})
}

// TestToUpstream is the way back: upstream's kubelet finds the volumes by what ours has left on disk.
func TestToUpstream(t *testing.T) {
	testChange(t, change{"our", "upstream's", "containerd", cluster.MovePeer, cluster.EndMovedPods, cluster.ReturnPeer})
}

func testChange(t *testing.T, c change) {
	t.Helper()
	if os.Getenv("WINKUBE_UPSTREAM") == "" {
		t.Skip("builds upstream's kubelet; only with WINKUBE_UPSTREAM=1")
	}
	ctx := context.Background()
	s := newSpace(t)
	t.Cleanup(func() { s.must(cluster.DownPeer(ctx)) })
	s.must(cluster.UpPeer(ctx))
	s.must(c.begin(ctx))
	d := newCSIDriver(s, cluster.Peer)
	shared, single := d.claim("shared"), d.claim("single")
	uids := map[string]string{}
	for name, source := range map[string]v1.VolumeSource{"a": claimed("shared"), "b": claimed("shared"), "c": claimed("single"), "inline": {CSI: &v1.CSIVolumeSource{Driver: lab.CSIDriverName}}} {
		pod := d.using(name, source)
		pod.Spec.NodeName = d.node.Name // the scheduler keeps the node free
		uids[name] = string(d.create(pod).UID)
	}
	for name := range uids {
		s.ready(name)
	}
	d.wants(shared, 1, 2, 0, 0)
	before := d.volumesOn()
	t.Logf("%s kubelet runs %v with\n%s", c.from, uids, before)

	s.must(c.end(ctx))
	s.must(d.outside().KubeletKilled())
	now := int64(0)
	for _, name := range []string{"a", "c"} { // the node has no kubelet that could end them
		s.must(client.CoreV1().Pods(s.name).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	}
	if got := d.volumesOn(); got.String() != before.String() {
		t.Errorf("without a kubelet there is\n%s", got)
	}
	s.must(c.move(ctx))
	s.runsIn(c.engine, "b")
	s.runsIn(c.engine, "inline")
	want := before.without(uids["a"], uids["c"], d.stagedAt(before, single))
	s.eventually(2*time.Minute, "volumes of the deleted pods unmounted", func(context.Context) error {
		if got := d.volumesOn(); got.String() != want.String() {
			return fmt.Errorf("there is\n%swant\n%s", got, want)
		}
		return nil
	})
	t.Logf("%s kubelet has, after pods a and c were deleted,\n%s", c.to, d.volumesOn())
	d.logCalls(shared, single)
	if staged := d.calls("NodeUnstageVolume", shared); staged > 0 {
		t.Errorf("the volume of pod b was unstaged %d times", staged)
	}
	d.endsWithAll(shared, single)
}

// endsWithAll ends the pods that are left. Then nothing is mounted, and no file of a volume is lost.
func (d *csiDriver) endsWithAll(shared, single string) {
	d.Helper()
	d.ends("b", "inline")
	d.eventually(time.Minute, "everything is unmounted", func(context.Context) error {
		if left := d.left(); len(left) > 0 {
			return errors.New(strings.Join(left, "\n"))
		}
		return nil
	})
	for handle, files := range map[string][]string{shared: {"a", "b"}, single: {"c"}} {
		for _, file := range files {
			if _, err := os.Stat(filepath.Join(d.outside().Content(handle), file)); err != nil {
				d.Errorf("a file of volume %s is lost: %v", handle, err)
			}
		}
	}
	d.logCalls(shared, single)
	d.inOrder()
}

// logCalls prints how often volumes were staged, published, unpublished and unstaged.
func (d *csiDriver) logCalls(handles ...string) {
	d.Helper()
	for _, handle := range handles {
		var line []string
		for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
			line = append(line, fmt.Sprintf("%s %d", method, d.calls(method, handle)))
		}
		d.Logf("volume %s: %s", handle, strings.Join(line, ", "))
	}
}
