package csi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

const (
	hasStats  = pb.NodeServiceCapability_RPC_GET_VOLUME_STATS
	condition = pb.NodeServiceCapability_RPC_VOLUME_CONDITION
)

func bytesUsage(total, used, free int64) *pb.VolumeUsage {
	return &pb.VolumeUsage{Unit: pb.VolumeUsage_BYTES, Total: total, Used: used, Available: free}
}

// place is where the only volume of a pod is measured.
func (r *rig) place(p *v1.Pod) disk.Place {
	r.t.Helper()
	places, err := r.Places(p)
	if err != nil || len(places) != 1 {
		r.t.Fatalf("%+v, %v", places, err)
	}
	return places[0]
}

func (r *rig) measure(p *v1.Pod) (host.Disk, *disk.Health, error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	of := r.place(p).Source
	d, err := of.Measure(ctx)
	return d, of.Health(), err
}

// TestFigures: a driver with GET_VOLUME_STATS measures its volumes and reports their health; the kernel measures the others.
func TestFigures(t *testing.T) {
	r := newRig(t)
	p := r.pod("a")
	r.MustPrepare(p)
	if got := r.place(p); got.Source != nil || !got.Own || got.Claim != "data" {
		t.Errorf("without GET_VOLUME_STATS: %+v", got)
	}
	inodes := &pb.VolumeUsage{Unit: pb.VolumeUsage_INODES, Total: 9, Used: 2, Available: -7}
	r.driver.SetCapabilities(stages, hasStats)
	r.driver.SetUsage("h", &pb.VolumeCondition{Abnormal: true}, bytesUsage(100, 30, 60), inodes, &pb.VolumeUsage{Total: 5})
	d, health, err := r.measure(p)
	if want := (host.Disk{Capacity: 100, Used: 30, Available: 60, Inodes: 9, InodesUsed: 2}); err != nil || d != want || health != nil {
		t.Errorf("%+v, %v, %v; want %+v without health", d, health, err, want)
	}
	if got := r.driver.Calls("NodeGetVolumeStats")[0].Request.(*pb.NodeGetVolumeStatsRequest); got.VolumeId != "h" || got.VolumePath != r.published().TargetPath {
		t.Errorf("request %v", got)
	}
	r.driver.SetCapabilities(stages, hasStats, condition)
	r.driver.SetUsage("h", &pb.VolumeCondition{Abnormal: true, Message: "lost a disk"})
	if _, health, err := r.measure(p); err != nil || health == nil || *health != (disk.Health{Abnormal: true, Message: "lost a disk"}) {
		t.Errorf("%+v, %v", health, err)
	}
	r.driver.Fail("NodeGetVolumeStats", status.Error(codes.Internal, "no"))
	if _, health, err := r.measure(p); err == nil || health == nil {
		t.Errorf("the last word on its health should stay: %v, %v", health, err)
	}
	same, key := r.place(p), r.place(r.other(p, "b"))
	if same.Source == key.Source || same.Source.Volume() != key.Source.Volume() || same.Source.Program() != "CSI driver disk.example.com" {
		t.Errorf("pods of one volume share its figures: %+v, %+v", same.Source, key.Source)
	}
	r.mustClean("b")
	r.mustClean("a")
	if h := same.Source.Health(); h != nil {
		t.Errorf("of a volume that is gone: %+v", h)
	}
}

// other is another pod with the volume of p, prepared.
func (r *rig) other(p *v1.Pod, uid string) *v1.Pod {
	r.t.Helper()
	q := r.pod(uid)
	r.MustPrepare(q)
	return q
}

// TestOnlyUsersMeasure: a volume is not measured for a pod that does not have it yet or any more, which leaves the figures of its users alone.
func TestOnlyUsersMeasure(t *testing.T) {
	for _, make := range []func(*rig, string) *v1.Pod{(*rig).pod, (*rig).device} {
		r := newRig(t)
		r.driver.SetCapabilities(stages, hasStats, condition)
		r.driver.SetUsage("h", &pb.VolumeCondition{Abnormal: true}, bytesUsage(100, 30, 60))
		none := func(p *v1.Pod, when string) {
			t.Helper()
			if places, err := r.Places(p); err != nil || len(places) > 0 {
				t.Errorf("%s: %+v, %v", when, places, err)
			}
		}
		a, b := make(r, "a"), make(r, "b")
		r.MustPrepare(a)
		r.driver.Fail("NodePublishVolume", status.Error(codes.Internal, "busy"))
		if _, err := r.Prepare(t.Context(), b); err == nil {
			t.Fatal("prepared")
		}
		none(b, "not published")
		r.MustPrepare(b)
		of, calls := r.place(b).Source, len(r.driver.Calls("NodeGetVolumeStats"))
		if _, _, err := r.measure(a); err != nil {
			t.Error(err)
		}
		for n, more := 1, true; more; n++ { // a kill keeps the pod's directory
			var err error
			if more, err = r.kind.EndUntil(t.Context(), "b", n); err != nil {
				t.Fatal(err)
			}
		}
		none(b, "undone")
		if _, err := of.Measure(t.Context()); !errors.Is(err, disk.ErrBusy) || len(r.driver.Calls("NodeGetVolumeStats")) != calls+1 {
			t.Errorf("measured for a pod that is undone: %v", err)
		}
		if _, health, err := r.measure(a); err != nil || health == nil {
			t.Errorf("%v, %v", health, err)
		}
		r.mustClean("b")
		last := r.place(a).Source
		r.mustClean("a")
		if _, err := last.Measure(t.Context()); !errors.Is(err, disk.ErrBusy) || last.Health() != nil {
			t.Errorf("a volume that is gone: %v, %v", err, last.Health())
		}
		r.nothingLeft()
	}
}

// TestInlinePlaces: an inline volume that was not prepared has no source of figures, whatever it names.
func TestInlinePlaces(t *testing.T) {
	r := newRig(t)
	r.rename("ebs.csi.aws.com")
	for _, source := range []v1.VolumeSource{{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}, {CSI: &v1.CSIVolumeSource{Driver: "no-such"}}} {
		if places, err := r.Places(volumetest.Pod(volumetest.Vol("v", source))); err != nil || len(places) > 0 {
			t.Errorf("%+v, %v", places, err)
		}
	}
}

// TestNoFigures: each reason has its own error, and that of a volume that is gone is distinct.
func TestNoFigures(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, hasStats)
	p := r.pod("a")
	r.MustPrepare(p)
	for name, test := range map[string]struct {
		do   func()
		want string
	}{
		"no answer":          {func() { r.driver.SetUsage("h", nil) }, "failed to get usage from response. usage is nil"},
		"an error":           {func() { r.driver.Fail("NodeGetVolumeStats", status.Error(codes.Internal, "broken")) }, "NodeGetVolumeStats: rpc error: code = Internal desc = broken"},
		"the volume is gone": {func() { r.driver.Fail("NodeGetVolumeStats", status.Error(codes.NotFound, "gone")) }, "file does not exist"},
		"the driver is gone": {func() { delete(r.drivers, driverName) }, "driver name disk.example.com not found in the list of registered CSI drivers"},
	} {
		test.do()
		if _, _, err := r.measure(p); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
		r.drivers[driverName] = r.driver
	}
}

// TestDeviceFigures: a block device only has figures of its driver.
func TestDeviceFigures(t *testing.T) {
	r := newRig(t)
	p := r.device("a")
	r.MustPrepare(p)
	if places, err := r.Places(p); err != nil || len(places) > 0 {
		t.Errorf("%+v, %v", places, err)
	}
	r.driver.SetCapabilities(stages, hasStats)
	r.driver.SetUsage("h", nil, bytesUsage(100, 0, 0))
	if d, _, err := r.measure(p); err != nil || d.Capacity != 100 {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestFiguresGiveWay: while a driver hangs in NodeGetVolumeStats, its volume is published again, measured no second time, and unpublished. csitest
// fails the test where two calls of a volume overlap.
func TestFiguresGiveWay(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, hasStats)
	p := r.pod("a")
	r.MustPrepare(p)
	of := r.place(p).Source
	for _, next := range []struct {
		name string
		do   func() error
	}{
		{"republish", func() error {
			r.rule(storagev1.CSIDriverSpec{AttachRequired: new(false), RequiresRepublish: new(true)})
			_, err := r.Prepare(t.Context(), p)
			return err
		}},
		{"end", func() error { return r.Clean(t.Context(), "a") }},
	} {
		resume := r.driver.Hang("NodeGetVolumeStats")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		before, ended := len(r.driver.Calls("NodeGetVolumeStats")), make(chan error, 1)
		go func() {
			_, err := of.Measure(ctx)
			ended <- err
		}()
		for len(r.driver.Calls("NodeGetVolumeStats")) == before && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if _, err := of.Measure(ctx); fmt.Sprint(err) != disk.ErrBusy.Error() {
			t.Errorf("%s: measured twice: %v", next.name, err)
		}
		if err := next.do(); err != nil {
			t.Errorf("%s: %v", next.name, err)
		}
		if err := <-ended; fmt.Sprint(err) != disk.ErrBusy.Error() || ctx.Err() != nil {
			t.Errorf("%s: the measurement ended with %v", next.name, err)
		}
		resume()
		cancel()
	}
	r.want("Stage Publish GetVolumeStats Publish GetVolumeStats Unpublish Unstage")
	r.nothingLeft()
}
