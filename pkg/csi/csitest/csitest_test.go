package csitest_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/winkube/winkube/pkg/csi/csitest"
)

// complaints takes the place of a test that fails.
type complaints struct {
	testing.TB
	said []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

// volume calls a driver for volume v below dir.
type volume struct {
	ctx context.Context
	dir string
	*csitest.Driver
}

func (v volume) path(name string) string { return filepath.Join(v.dir, name) }

func (v volume) stage(path string) error {
	_, err := v.Node().NodeStageVolume(v.ctx, &pb.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: v.path(path), VolumeCapability: &pb.VolumeCapability{}})
	return err
}

func (v volume) unstage(path string) error {
	_, err := v.Node().NodeUnstageVolume(v.ctx, &pb.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: v.path(path)})
	return err
}

func (v volume) publish(from, target string) error {
	_, err := v.Node().NodePublishVolume(v.ctx, &pb.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: v.path(from), TargetPath: v.path(target), VolumeCapability: &pb.VolumeCapability{}})
	return err
}

func (v volume) unpublish(target string) error {
	_, err := v.Node().NodeUnpublishVolume(v.ctx, &pb.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: v.path(target)})
	return err
}

// TestComplaints: what is right passes, also twice; what is wrong fails the test that did it.
func TestComplaints(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(v volume) error
		want string // in the complaint; "": none, and no error
	}{
		"right, twice each": {func(v volume) error {
			for range 2 {
				if err := v.stage(""); err != nil {
					return err
				}
			}
			for range 2 {
				if err := v.publish("", "t"); err != nil {
					return err
				}
			}
			for range 2 {
				if err := v.unpublish("t"); err != nil {
					return err
				}
			}
			for range 2 {
				if err := v.unstage(""); err != nil {
					return err
				}
			}
			return nil
		}, ""},
		"publish before stage":     {func(v volume) error { return v.publish("", "t") }, "which is not staged"},
		"staged elsewhere":         {func(v volume) error { _ = v.stage(""); return v.publish("other", "t") }, "it is staged at"},
		"no staging directory":     {func(v volume) error { return v.stage("missing") }, "is not a directory"},
		"no parent of the target":  {func(v volume) error { _ = v.stage(""); return v.publish("", "missing/t") }, "the parent of"},
		"unstage before unpublish": {func(v volume) error { _ = v.stage(""); _ = v.publish("", "t"); return v.unstage("") }, "which is published at"},
		"no deadline":              {func(v volume) error { v.ctx = context.Background(); return v.stage("") }, "has no deadline"},
		"two calls of one volume": {func(v volume) error {
			resume := v.Hang("NodeStageVolume")
			first := make(chan error, 1)
			go func() { first <- v.stage("") }()
			for len(v.Calls("NodeStageVolume")) == 0 {
				time.Sleep(time.Millisecond)
			}
			err := v.unstage("")
			resume()
			<-first
			return err
		}, "while NodeStageVolume works on it"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c := &complaints{TB: t}
		err := test.do(volume{ctx, t.TempDir(), csitest.New(c, "d")})
		cancel()
		if said := strings.Join(c.said, "; "); (err != nil) != (test.want != "") || (said != "") != (test.want != "") || !strings.Contains(said, test.want) {
			t.Errorf("%s: %v, complaints %q, want %q", name, err, said, test.want)
		}
	}
}

// TestWishes: calls fail, hang and lie as a test wants, without any effect.
func TestWishes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v := volume{ctx, t.TempDir(), csitest.New(t, "d")}
	v.Fail("NodeStageVolume", status.Error(codes.Unavailable, "no"))
	if err := v.stage(""); status.Code(err) != codes.Unavailable || len(v.Volumes()) != 0 {
		t.Errorf("got %v, %v", err, v.Volumes())
	}
	v.Lie("NodeStageVolume", func(any) any { return &pb.NodeStageVolumeResponse{} })
	if err := v.stage(""); err != nil || len(v.Volumes()) != 0 {
		t.Errorf("got %v, %v", err, v.Volumes())
	}
	v.Lie("NodeStageVolume", nil)
	v.Hang("NodeStageVolume")
	short := v
	var stop context.CancelFunc
	short.ctx, stop = context.WithTimeout(ctx, 10*time.Millisecond)
	defer stop()
	if err := short.stage(""); status.Code(err) != codes.DeadlineExceeded || len(v.Volumes()) != 0 {
		t.Errorf("got %v, %v", err, v.Volumes())
	}
}
