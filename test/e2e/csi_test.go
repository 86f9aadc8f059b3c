package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/test/csidriver"
	"github.com/winkube/winkube/test/lab"
)

// TestCSI: two pods share a volume of a CSI driver, and an inline volume belongs to its pod. Both survive a kill of the
// kubelet, also between stage and publish, and leave nothing behind.
func TestCSI(t *testing.T) {
	s := newSpace(t)
	d := newCSIDriver(s, cluster.Nodes[1])
	kubelet := d.node.Process("kubelet")
	kill := func() {
		t.Helper()
		d.killKubelet()
		s.must(kubelet.Start(context.Background()))
	}
	shared, second := d.claim("shared"), d.claim("second")
	d.uses("a", claimed("shared"))
	d.uses("b", claimed("shared"))
	d.uses("inline", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: lab.CSIDriverName}})
	d.measures("shared")
	for _, name := range []string{"a", "b", "inline"} {
		s.ready(name)
	}
	d.wants(shared, 1, 2, 0, 0)

	s.allReady(2 * time.Minute) // another test may have left them starting
	before := s.snapshot()
	kill()
	s.nodeReady(d.node.Name, true, 60*time.Second)

	// The kubelet dies while the driver publishes.
	hang := filepath.Join(d.data, "hang-NodePublishVolume")
	s.must(os.WriteFile(hang, nil, 0o600))
	d.uses("c", claimed("second"))
	s.eventually(60*time.Second, "the driver publishes", func(context.Context) error {
		if d.calls("NodePublishVolume", second) == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	d.killKubelet()
	s.must(os.Remove(hang))
	s.must(kubelet.Start(context.Background()))
	s.ready("c")
	if diff := difference(before, s.snapshot()); strings.HasPrefix(diff, "- ") { // pod c is new
		t.Errorf("containers or restart counts changed:\n%s", diff)
	}
	d.wants(shared, 1, 2, 0, 0)

	d.ends("a")
	d.wants(shared, 1, 2, 1, 0)
	d.ends("b", "c", "inline")
	d.wants(shared, 1, 2, 2, 1)
	endedWell(d, shared, 2)
}

// TestCSIBlock: a pod writes to a real block device of a CSI driver, also after the kubelet was killed while the driver published it. The next pod reads
// what was written, one that may only read cannot write, and no device is left.
func TestCSIBlock(t *testing.T) {
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("this machine has no loop devices: %v", err)
	}
	s := newSpace(t)
	d := newCSIDriver(s, cluster.Nodes[1])
	kubelet := d.node.Process("kubelet")
	handle := d.claimAs("disk", v1.PersistentVolumeBlock, &pb.VolumeCapability{AccessType: &pb.VolumeCapability_Block{Block: &pb.VolumeCapability_BlockVolume{}}})
	pod := func(name, commands string, readOnly bool) *v1.Pod {
		p := d.pod(name, d.node, "shell", "-c", commands)
		source := claimed("disk")
		source.PersistentVolumeClaim.ReadOnly = readOnly
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: source}}
		p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/disk"}}
		return p
	}
	hang := filepath.Join(d.data, "hang-NodePublishVolume")
	s.must(os.WriteFile(hang, nil, 0o600))
	writer := pod("writer", "write /dev/disk written; sleep", false)
	readsAll(writer, "/dev/disk")
	d.create(writer)
	s.eventually(60*time.Second, "the driver publishes", func(context.Context) error {
		if d.calls("NodePublishVolume", handle) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	d.killKubelet()
	s.must(os.Remove(hang))
	s.must(kubelet.Start(context.Background()))
	s.ready("writer")
	d.ends("writer")

	reader := pod("reader", "cat /dev/disk", true)
	reader.Spec.RestartPolicy = v1.RestartPolicyNever
	d.create(reader)
	s.ended("reader", v1.PodSucceeded, time.Minute)
	if got := s.logs("reader"); !strings.HasPrefix(got, "written") {
		t.Errorf("the next pod reads %q, want written", got[:min(len(got), 20)])
	}
	vandal := pod("vandal", "write /dev/disk broken", true)
	vandal.Spec.RestartPolicy = v1.RestartPolicyNever
	d.create(vandal)
	s.ended("vandal", v1.PodFailed, time.Minute)
	d.ends("reader", "vandal")
	image := filepath.Join(d.data, "volumes", handle, "content", "image")
	if data, err := os.ReadFile(image); err != nil || !strings.HasPrefix(string(data), "written") {
		t.Errorf("the device's file begins with %q, %v", data[:min(len(data), 20)], err)
	}
	// The API server removes a pod that has ended without waiting for the kubelet.
	s.eventually(60*time.Second, "the volume is unstaged", func(ctx context.Context) error {
		devices, err := d.node.Command(ctx, "losetup", "--associated", image).Output()
		if err != nil || len(devices) > 0 {
			return fmt.Errorf("%s, %v", devices, err)
		}
		lines, err := d.outside().Calls()
		if err != nil {
			return err
		}
		_, inUse := csidriver.Order(lines)
		if left := append(inUse, d.left()...); len(left) > 0 {
			return errors.New(strings.Join(left, "\n"))
		}
		return nil
	})
	d.inOrder()
}
