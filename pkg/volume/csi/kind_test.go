package csi_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/csi/csitest"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// stageDir is where upstream stages the volume with the handle h.
const stageDir = "plugins/kubernetes.io/csi/disk.example.com/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123"

// TestTwoPodsOnOneVolume: it is staged once and unstaged with the last pod; what lies on disk is upstream's.
func TestTwoPodsOnOneVolume(t *testing.T) {
	r := newRig(t)
	a, b := r.pod("a"), r.pod("b")
	for _, p := range []*v1.Pod{a, b, a, b} {
		path := r.MustPrepare(p)["v"]
		if want := r.path("pods", string(p.UID), "volumes/kubernetes.io~csi/pv/mount"); path != want {
			t.Errorf("at %s, want %s", path, want)
		}
	}
	r.want("Stage Publish Publish")
	for file, want := range map[string]string{
		"pods/b/volumes/kubernetes.io~csi/pv/vol_data.json": `{"specVolID":"pv","volumeHandle":"h","driverName":"disk.example.com","nodeName":"n",` +
			`"attachmentID":"csi-63a6b0792f16cceffa0b0689df65a4df7e1190d3ad60d6a1f76bd5a58dcdbe6f","volumeLifecycleMode":"Persistent"}` + "\n",
		stageDir + "/vol_data.json": `{"volumeHandle":"h","driverName":"disk.example.com"}` + "\n",
	} {
		got, err := os.ReadFile(r.path(file))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s has %swant %s", file, got, want)
		}
	}
	if _, err := os.Stat(r.path(stageDir, "globalmount")); err != nil {
		t.Error(err)
	}
	if m, err := r.Mount(a, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || m.HostPath != r.path("pods/a/volumes/kubernetes.io~csi/pv/mount") || m.ReadOnly {
		t.Errorf("mount: %+v, %v", m, err)
	}
	r.mustClean("a")
	r.want("Stage Publish Publish Unpublish")
	r.mustClean("b")
	r.mustClean("b")
	r.want("Stage Publish Publish Unpublish Unpublish Unstage")
	r.nothingLeft()
}

// dying is a driver whose agent is killed at one call: before it, or before its answer.
type dying struct {
	csi.Driver
	pb.NodeClient
	calls, at int
	after     bool
	dead      bool
}

func (d *dying) call(do func() error) error {
	if d.dead {
		return errors.New("the agent is dead")
	}
	d.calls++
	if d.dead = d.calls == d.at; d.dead && !d.after {
		return status.Error(codes.Unavailable, "the agent was killed before the call")
	}
	err := do()
	if d.dead {
		return status.Error(codes.Unavailable, "the agent was killed before the answer")
	}
	return err
}

// TestKilledAtEveryCall: at whatever call the agent is killed, the next one makes the volume ready, or cleans it up from disk without the API server.
func TestKilledAtEveryCall(t *testing.T) {
	for at := 1; at <= 6; at++ {
		for _, after := range []bool{false, true} {
			for _, wanted := range []bool{false, true} {
				r := newRig(t)
				killer := &dying{Driver: r.driver, NodeClient: r.driver.Node(), at: at, after: after}
				r.drivers[driverName] = &killing{killer}
				a, b := r.pod("a"), r.pod("b")
				kills := 0
				try := func(do func() error) error {
					err := do()
					if killer.dead {
						kills++
						r.drivers[driverName] = r.driver
						r.restart()
						killer.dead = false
					}
					return err
				}
				for _, p := range []*v1.Pod{a, b} {
					err := try(func() error { _, err := r.Prepare(t.Context(), p); return err })
					if err != nil && wanted {
						r.MustPrepare(p)
					}
				}
				r.API.Down = errors.New("connection refused")
				for _, p := range []*v1.Pod{a, b} {
					if err := try(func() error { return r.Clean(t.Context(), p.UID) }); err != nil {
						r.mustClean(string(p.UID))
					}
				}
				if kills != 1 && killer.calls >= at {
					t.Errorf("call %d: %d kills", at, kills)
				}
				if err := r.kind.Orphans(t.Context()); err != nil { // what Run does
					t.Error(err)
				}
				r.nothingLeft()
			}
		}
	}
}

// killing lists the calls of a dying driver.
type killing struct{ *dying }

func (k *killing) Node() pb.NodeClient { return mortal{k.dying} }

// TestRunningPodNeedsNoAPI: after a restart of the agent a running pod's volume is as it was, with neither API server nor driver.
func TestRunningPodNeedsNoAPI(t *testing.T) {
	r := newRig(t)
	p := r.pod("a")
	r.MustPrepare(p)
	delete(r.drivers, driverName)
	r.restart()
	r.MustPrepare(p) // reads claim and volume once
	r.API.Down = errors.New("connection refused")
	if got := r.MustPrepare(p)["v"]; got == "" {
		t.Error("no path")
	}
	r.want("Stage Publish")
	if got := r.kind.InUse(); len(got) != 0 {
		t.Errorf("volumesInUse %q of a driver without attaching", got)
	}

	// A reboot takes the mounts away.
	r.API.Down, r.Kernel.Points, r.drivers[driverName] = nil, nil, r.driver
	r.MustPrepare(p)
	r.want("Stage Publish Stage Publish")
}

// TestDriverGone: a pod ends when its driver is back; until then its volume stays mounted and nothing of it is deleted.
func TestDriverGone(t *testing.T) {
	r := newRig(t)
	p := r.pod("a")
	dir := r.MustPrepare(p)["v"]
	delete(r.drivers, driverName)
	if _, err := r.Prepare(t.Context(), r.pod("b")); err == nil || !strings.Contains(err.Error(),
		`MountVolume.SetUp failed for volume "v" : kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name disk.example.com not found in the list of registered CSI drivers`) {
		t.Errorf("Prepare: %v", err)
	}
	r.mustClean("b") // it had nothing
	err := r.Clean(t.Context(), "a")
	if err == nil || !strings.Contains(err.Error(), "driver name disk.example.com not found in the list of registered CSI drivers; volume h stays until the driver is back") {
		t.Errorf("Clean: %v", err)
	}
	if on, _ := r.Kernel.IsMount(dir); !on {
		t.Error("unmounted behind the driver's back")
	}
	r.drivers[driverName] = r.driver
	r.mustClean("a")
	r.nothingLeft()
}

// TestHungDriver: it blocks only its own volumes; a pod whose start was abandoned ends after the call has.
func TestHungDriver(t *testing.T) {
	r := newRig(t)
	other := csitest.New(t, "other.example.com")
	r.drivers["other.example.com"] = other
	r.api.drivers["other.example.com"] = &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: new(false), PodInfoOnMount: new(true),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}}}
	resume := r.driver.Hang("NodeStageVolume")
	ctx, cancel := context.WithCancel(t.Context())
	a := r.pod("a")
	prepared := make(chan error, 1)
	go func() { _, err := r.Prepare(ctx, a); prepared <- err }()
	for len(r.driver.Calls()) == 0 {
		time.Sleep(time.Millisecond)
	}
	b := volumetest.Pod(volumetest.Vol("in", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "other.example.com"}}))
	r.MustPrepare(b)
	cancel()
	if err := <-prepared; err == nil {
		t.Error("Prepare succeeded")
	}
	cleaned := make(chan error, 1)
	go func() { cleaned <- r.Clean(t.Context(), "a") }()
	select {
	case err := <-cleaned:
		t.Fatalf("Clean did not wait for the call: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	resume()
	if err := <-cleaned; err != nil {
		t.Fatal(err)
	}
	r.want("Stage Unpublish Unstage")
	r.mustClean(string(b.UID))
	r.nothingLeft()
}

// TestFromUpstream: what upstream's kubelet has left on disk is found, unpublished and unstaged, with the API away.
func TestFromUpstream(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	write := func(file, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(r.path(file)), 0o750), os.WriteFile(r.path(file), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	target := r.path("pods/a/volumes/kubernetes.io~csi/pv/mount")
	write(stageDir+"/vol_data.json", `{"driverName":"disk.example.com","volumeHandle":"h"}`+"\n")
	write("pods/a/volumes/kubernetes.io~csi/pv/vol_data.json", `{"attachmentID":"csi-1","driverName":"disk.example.com","nodeName":"n","specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Persistent"}`+"\n")
	// Staged for a pod that never got that far.
	orphan := "plugins/kubernetes.io/csi/disk.example.com/88f6811ab5d8fc6d3177f9b7609ae0fcebfda187e5046b62d38bb539e88b74d7"
	write(orphan+"/vol_data.json", `{"driverName":"disk.example.com","volumeHandle":"orphan"}`+"\n")
	stageAs := func(id, dir string) {
		t.Helper()
		err := os.MkdirAll(r.path(dir, "globalmount"), 0o750)
		if err == nil {
			_, err = r.driver.Node().NodeStageVolume(ctx, &pb.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: r.path(dir, "globalmount"), VolumeCapability: &pb.VolumeCapability{}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stageAs("h", stageDir)
	stageAs("orphan", orphan)
	if _, err := r.driver.Node().NodePublishVolume(ctx, &pb.NodePublishVolumeRequest{VolumeId: "h", StagingTargetPath: r.path(stageDir, "globalmount"), TargetPath: target, VolumeCapability: &pb.VolumeCapability{}}); err != nil {
		t.Fatal(err)
	}
	r.API.Down, r.api.drivers = errors.New("connection refused"), nil
	r.restart()
	if got := r.kind.InUse(); !slices.Equal(got, []v1.UniqueVolumeName{"kubernetes.io/csi/disk.example.com^h", "kubernetes.io/csi/disk.example.com^orphan"}) {
		t.Errorf("volumesInUse after the start: %q", got)
	}
	if err := r.kind.Orphans(ctx); err != nil {
		t.Fatal(err)
	}
	if got := r.methods(3); got != "Unstage" {
		t.Errorf("orphans: %s", got)
	}
	r.mustClean("a")
	if got := r.methods(4); got != "Unpublish Unstage" {
		t.Errorf("the pod: %s", got)
	}
	r.nothingLeft()
}

// TestAttach: nothing is mounted before the Node says that the volume is in use and attached; it is in use until it is unstaged.
func TestAttach(t *testing.T) {
	r := newRig(t)
	r.rule(storagev1.CSIDriverSpec{})
	p := r.pod("a")
	prepared := make(chan error, 1)
	prepare := func() {
		go func() { _, err := r.Prepare(t.Context(), p); prepared <- err }()
	}
	prepare()
	<-r.changed // the Node's status is compared
	name := v1.UniqueVolumeName("kubernetes.io/csi/disk.example.com^h")
	if got := r.kind.InUse(); !slices.Equal(got, []v1.UniqueVolumeName{name}) {
		t.Errorf("volumesInUse: %q", got)
	}
	node := &v1.Node{}
	attachment := &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"lun": "4"}}}
	const id = "csi-63a6b0792f16cceffa0b0689df65a4df7e1190d3ad60d6a1f76bd5a58dcdbe6f" // sha256 of handle, driver and node
	r.api.change(func() { r.api.node, r.api.attach[id] = node, attachment })
	still := func(why string) {
		t.Helper()
		select {
		case err := <-prepared:
			t.Fatalf("%s: Prepare returned %v", why, err)
		case <-time.After(30 * time.Millisecond):
		}
		r.want("")
	}
	still("attached, neither reported as in use nor as attached")
	attached := []v1.AttachedVolume{{Name: name}}
	r.api.change(func() { r.api.node = &v1.Node{Status: v1.NodeStatus{VolumesAttached: attached}} })
	still("not reported as in use")
	both := &v1.Node{Status: v1.NodeStatus{VolumesAttached: attached, VolumesInUse: []v1.UniqueVolumeName{name}}}
	r.api.change(func() { r.api.node = both })
	still("the agent has not reported it")
	r.kind.Reported(both)
	if err := <-prepared; err != nil {
		t.Fatal(err)
	}
	r.want("Stage Publish")
	for _, c := range r.driver.Calls() {
		if got := c.Request.(interface{ GetPublishContext() map[string]string }).GetPublishContext(); got["lun"] != "4" {
			t.Errorf("%s: publish context %v", c.Method, got)
		}
	}
	r.restart()
	if got := r.kind.InUse(); !slices.Equal(got, []v1.UniqueVolumeName{name}) {
		t.Errorf("volumesInUse after a restart: %q", got)
	}
	r.driver.Fail("NodeUnstageVolume", status.Error(codes.Internal, "busy"))
	r.mustClean("a")
	if got := r.kind.InUse(); len(got) != 1 {
		t.Errorf("volumesInUse while it is staged: %q", got)
	}
	if err := r.kind.Orphans(t.Context()); err != nil {
		t.Error(err)
	}
	r.nothingLeft()

	for want, status := range map[string]storagev1.VolumeAttachmentStatus{
		"no such disk": {AttachError: &storagev1.VolumeError{Message: "no such disk"}},
	} {
		r.api.change(func() { r.api.attach[id] = &storagev1.VolumeAttachment{Status: status} })
		if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestCorruptRecord: the volume is unknown, so nothing is deleted; the record of a pod that should run is written again.
func TestCorruptRecord(t *testing.T) {
	r := newRig(t)
	p := r.pod("a")
	r.MustPrepare(p)
	record := r.path("pods/a/volumes/kubernetes.io~csi/pv/vol_data.json")
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := r.Clean(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "failed to parse volume data file ["+record+"]") {
		t.Errorf("Clean: %v", err)
	}
	if len(r.Kernel.Points) != 1 {
		t.Errorf("mounted: %q", r.Kernel.Points)
	}
	r.want("Stage Publish")

	// Another pod's end does not unstage what the first may use.
	r.MustPrepare(r.pod("b"))
	r.mustClean("b")
	if strings.Contains(r.methods(0), "Unstage") {
		t.Error("unstaged below a pod whose record cannot be read")
	}

	// After a reboot the pod is prepared again.
	r.Kernel.Points = nil
	r.MustPrepare(p)
	r.mustClean("a")
	r.nothingLeft()
}

// TestRefusedForGood: if the driver never had the volume, the pod ends without the driver; if it may have it, not.
func TestRefusedForGood(t *testing.T) {
	for _, test := range []struct {
		code       codes.Code
		afterwards string
	}{{codes.InvalidArgument, "Stage"}, {codes.DeadlineExceeded, "Stage Unpublish Unstage"}} {
		r := newRig(t)
		r.driver.Fail("NodeStageVolume", status.Error(test.code, "no"))
		if _, err := r.Prepare(t.Context(), r.pod("a")); err == nil || !strings.Contains(err.Error(), "rpc error: code = "+test.code.String()+" desc = no") {
			t.Errorf("%s: %v", test.code, err)
		}
		r.mustClean("a")
		r.want(test.afterwards)
		r.nothingLeft()
	}
}

// TestVolumeForgottenByDriver: NotFound at the end is no reason to keep a pod, unless something is mounted.
func TestVolumeForgottenByDriver(t *testing.T) {
	r := newRig(t)
	r.MustPrepare(r.pod("a"))
	gone := status.Error(codes.NotFound, "no such volume")
	r.driver.Fail("NodeUnpublishVolume", gone)
	if err := r.Clean(t.Context(), "a"); err == nil {
		t.Error("cleaned up although it is mounted")
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestDriverLeavesMountBehind: mounts that remain after the driver has reported success are removed before the volume is unstaged.
func TestDriverLeavesMountBehind(t *testing.T) {
	r := newRig(t)
	r.MustPrepare(r.pod("a"))
	r.driver.OnMount(func(string, string) {}, func(string, string) {})
	r.mustClean("a")
	r.nothingLeft()
}

// TestOtherVolumeAtThePlace: a PersistentVolume that was deleted and recreated under its name is not confused with the old one.
func TestOtherVolumeAtThePlace(t *testing.T) {
	r := newRig(t)
	p := r.pod("a")
	r.MustPrepare(p)
	r.restart()
	r.Kernel.Points = nil
	r.API.Volumes["pv"].Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "other"}
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "pv holds volume h of driver disk.example.com; want other of disk.example.com") {
		t.Errorf("%v", err)
	}
	r.mustClean("a")
	r.nothingLeft()
}
