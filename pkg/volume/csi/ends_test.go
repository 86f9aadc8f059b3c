package csi_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const attachedHandle = "csi-63a6b0792f16cceffa0b0689df65a4df7e1190d3ad60d6a1f76bd5a58dcdbe6f" // sha256 of handle, driver and node

// attachable makes the driver's volumes need attaching, and reports the volume h as in use and attached.
func (r *rig) attachable() {
	r.t.Helper()
	r.rule(storagev1.CSIDriverSpec{})
	name := v1.UniqueVolumeName("kubernetes.io/csi/disk.example.com^h")
	node := &v1.Node{Status: v1.NodeStatus{VolumesInUse: []v1.UniqueVolumeName{name}, VolumesAttached: []v1.AttachedVolume{{Name: name}}}}
	r.api.sent = func() { r.kind.Reported(node) }
	r.api.change(func() {
		r.api.node = node
		r.api.attach[attachedHandle] = &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true}}
	})
}

func (r *rig) wantInUse(when string, want int) {
	r.t.Helper()
	if got := r.kind.InUse(); len(got) != want {
		r.t.Errorf("%s: volumesInUse %q, want %d", when, got, want)
	}
}

// stagedForNone is what remains when upstream's kubelet is killed: it stages before it records the pod.
func (r *rig) stagedForNone() {
	r.t.Helper()
	r.driver.Fail("NodePublishVolume", status.Error(codes.Internal, "busy"))
	if _, err := r.Prepare(r.t.Context(), r.pod("a")); err == nil {
		r.t.Fatal("prepared")
	}
	if err := os.RemoveAll(r.path("pods/a")); err != nil {
		r.t.Fatal(err)
	}
	r.restart()
	r.wantInUse("staged for no known pod", 1)
}

// TestStagedVolumeTakenOver: a volume that was staged for no known pod is in use no longer than the pods that then use it.
func TestStagedVolumeTakenOver(t *testing.T) {
	for _, look := range []bool{false, true} { // for orphans, while the pod uses the volume
		r := newRig(t)
		r.attachable()
		r.stagedForNone()
		r.MustPrepare(r.pod("b"))
		if look {
			if err := r.kind.Orphans(t.Context()); err != nil {
				t.Error(err)
			}
		}
		r.wantInUse("used by b", 1)
		r.mustClean("b")
		r.wantInUse("unstaged", 0)
	}
}

// TestStagedVolumeTakenOverByTwo: the last pod's kubelet may have looked for orphans while there were two.
func TestStagedVolumeTakenOverByTwo(t *testing.T) {
	r := newRig(t)
	r.attachable()
	r.stagedForNone()
	r.MustPrepare(r.pod("b"))
	r.MustPrepare(r.pod("c"))
	if err := r.kind.Orphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mustClean("b")
	r.wantInUse("used by c", 1)
	r.mustClean("c")
	r.wantInUse("unstaged", 0)
}

// TestStagedVolumeOfCorruptRecord: while a pod's record cannot be read, its volume stays in use, although other pods come and go.
func TestStagedVolumeOfCorruptRecord(t *testing.T) {
	r := newRig(t)
	r.attachable()
	r.MustPrepare(r.pod("a"))
	if err := os.WriteFile(r.path("pods/a/volumes/kubernetes.io~csi/pv/vol_data.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.MustPrepare(r.pod("b"))
	if err := r.kind.Orphans(t.Context()); err != nil {
		t.Error(err)
	}
	r.mustClean("b")
	r.wantInUse("mounted for a", 1)
}

// device is a pod with the volume pv as a block device.
func (r *rig) device(uid string) *v1.Pod {
	r.t.Helper()
	p := r.pod(uid)
	r.API.Volumes["pv"].Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/xvda"}}
	return p
}

// TestKilledAtEveryStepOfTheEnd: wherever the agent is killed while it releases a pod's volume, the next agent gives it to another pod, unstages
// what is left, and ends the first pod, in any order.
func TestKilledAtEveryStepOfTheEnd(t *testing.T) {
	for _, make := range []func(*rig, string) *v1.Pod{(*rig).pod, (*rig).device} {
		for n, more := 0, true; more; n++ {
			for _, other := range []bool{false, true} {
				r := newRig(t)
				a, b := make(r, "a"), make(r, "b")
				r.API.Volumes["pv"].Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
				r.MustPrepare(a)
				var err error
				if more, err = r.kind.EndUntil(t.Context(), "a", n); err != nil {
					t.Fatal(err)
				}
				r.restart()
				if err := r.kind.Orphans(t.Context()); err != nil {
					t.Errorf("killed after step %d: %v", n, err)
				}
				if !other {
					r.mustClean("a")
				}
				_, err = r.Prepare(t.Context(), b)
				if refused := err != nil && strings.Contains(err.Error(), "already in use by another pod"); err != nil && (!refused || !other) {
					t.Errorf("killed after step %d: %v", n, err)
				}
				r.mustClean("a")
				r.mustClean("b")
				r.nothingLeft()
			}
		}
	}
}

// TestKilledBeforeTheLink: what is left of a device then neither keeps its pod, nor another from it, nor others' volumes staged.
func TestKilledBeforeTheLink(t *testing.T) {
	r := newRig(t)
	a := r.device("a")
	r.API.Volumes["pv"].Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	r.MustPrepare(a)
	n := 0
	for _, err := os.Stat(r.path("plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json")); err == nil; _, err = os.Stat(r.path("plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json")) {
		n++
		if more, err := r.kind.EndUntil(t.Context(), "a", n); err != nil || !more {
			t.Fatalf("%d steps: %v, %v", n, more, err)
		}
	}
	r.restart()
	orphan := "plugins/kubernetes.io/csi/disk.example.com/88f6811ab5d8fc6d3177f9b7609ae0fcebfda187e5046b62d38bb539e88b74d7" // sha256 of orphan
	if err := os.MkdirAll(r.path(orphan), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.path(orphan, "vol_data.json"), []byte(`{"driverName":"disk.example.com","volumeHandle":"orphan"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.kind.Orphans(t.Context()); err != nil {
		t.Error(err)
	}

	target := r.path("plugins/kubernetes.io/csi/volumeDevices/publish/pv/a")
	r.Kernel.Points = append(r.Kernel.Points, target)
	if err := r.Clean(t.Context(), "a"); err == nil {
		t.Error("forgot a device that is mounted")
	}
	r.Kernel.Points = nil
	b := r.device("b")
	r.MustPrepare(b)
	r.mustClean("b")
	r.mustClean("a")
	r.nothingLeft()
}

// TestStagedMountIsNotTouched: after a restart the agent calls NodeStage for a mounted volume again without looking into it, because that may hang.
func TestStagedMountIsNotTouched(t *testing.T) {
	r := newRig(t)
	r.MustPrepare(r.pod("a"))
	staging := r.path(stageDir, "globalmount")
	r.Kernel.Points = append(r.Kernel.Points, staging)
	if err := errors.Join(os.Remove(staging), os.WriteFile(staging, nil, 0o600)); err != nil { // refuses what a directory does not
		t.Fatal(err)
	}
	r.restart()
	r.driver.Fail("NodeStageVolume", status.Error(codes.Internal, "busy"))
	if _, err := r.Prepare(t.Context(), r.pod("b")); err == nil || !strings.Contains(err.Error(), "desc = busy") {
		t.Errorf("%v", err)
	}
	r.want("Stage Publish Stage")
}

// TestDeviceNames: a device whose directory would be that of all devices is refused; a file system of that name is not.
func TestDeviceNames(t *testing.T) {
	for _, name := range []string{"staging", "publish"} {
		r := newRig(t)
		p := r.device("a")
		pv := r.API.Volumes["pv"]
		pv.Name, r.API.Claims["shop/data"].Spec.VolumeName, r.API.Volumes[name] = name, name, pv
		if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "PersistentVolume "+name+": metadata.name is that of a directory of all block volumes; want another name") {
			t.Errorf("%v", err)
		}
		r.want("")
		p.Spec.Containers[0].VolumeDevices, pv.Spec.VolumeMode = nil, nil
		r.MustPrepare(p)
		r.mustClean("a")
		r.nothingLeft()
	}
}

// TestStaleNode: a state of the Node from before the volume was last reported as in use does not show whether it is attached now.
func TestStaleNode(t *testing.T) {
	r := newRig(t)
	r.rule(storagev1.CSIDriverSpec{})
	name := v1.UniqueVolumeName("kubernetes.io/csi/disk.example.com^h")
	both := v1.NodeStatus{VolumesInUse: []v1.UniqueVolumeName{name}, VolumesAttached: []v1.AttachedVolume{{Name: name}}}
	node := func(version string, status v1.NodeStatus) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}, Status: status}
	}
	show := func(n *v1.Node) { r.api.change(func() { r.api.node = n }) }
	r.api.attach[attachedHandle] = &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true}}
	prepared := make(chan error, 1)
	prepare := func(uid string) {
		p := r.pod(uid)
		go func() { _, err := r.Prepare(t.Context(), p); prepared <- err }()
		for len(r.kind.InUse()) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	prepare("a")
	show(node("5", both))
	r.kind.Reported(node("5", both)) // the answer comes after the watch
	if err := <-prepared; err != nil {
		t.Fatal(err)
	}
	r.kind.Reported(node("6", both))
	r.mustClean("a")

	still := func(why string) {
		t.Helper()
		select {
		case err := <-prepared:
			t.Fatalf("%s: Prepare returned %v", why, err)
		case <-time.After(30 * time.Millisecond):
		}
	}
	prepare("b")
	still("the Node is older than the end of a")
	r.kind.Reported(node("7", v1.NodeStatus{})) // sent before b came
	still("reported as not in use")
	r.kind.Reported(node("9", both))
	still("the Node is older than the report")
	show(node("8", both))
	still("the Node is still older")
	show(node("9", v1.NodeStatus{VolumesInUse: both.VolumesInUse}))
	still("detached meanwhile")
	r.kind.Reported(node("11", both)) // heartbeats do not make it wait for themselves
	show(node("10", both))
	if err := <-prepared; err != nil {
		t.Fatal(err)
	}
	r.mustClean("b")
	r.nothingLeft()
}
