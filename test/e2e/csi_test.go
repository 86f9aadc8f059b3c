package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/winkube/winkube/test/lab"
)

const csiName = "dir.winkube.test"

// csiDriver is the driver of test/csidriver on one node.
type csiDriver struct {
	*space
	node *lab.Host
	data string
}

// newCSIDriver builds and starts the driver on a node, and waits until the node's CSINode lists it.
func newCSIDriver(s *space, node *lab.Host) *csiDriver {
	s.Helper()
	d := &csiDriver{s, node, s.TempDir()}
	program := filepath.Join(s.TempDir(), "csidriver")
	s.must(cluster.Logged(s.Context(), "csidriver-build", cluster.Root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace",
		"-o", program, "./test/csidriver/program"))
	ctx, cancel := context.WithCancel(context.Background())
	run := node.Command(ctx, program, "--name="+csiName, "--node-id="+node.Name, "--data="+d.data,
		"--endpoint="+d.socket(), "--registry="+node.Dir("kubelet", "plugins_registry"))
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	run.Stderr = s.Output()
	s.must(run.Start())
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiName}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false), PodInfoOnMount: new(true),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}}}
	if _, err := client.StorageV1().CSIDrivers().Create(s.Context(), object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		cancel()
		_ = run.Wait()
		if err := client.StorageV1().CSIDrivers().Delete(context.Background(), csiName, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	s.eventually(60*time.Second, "CSINode "+node.Name+" has the driver", func(ctx context.Context) error {
		n, err := client.StorageV1().CSINodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == csiName }) {
			err = fmt.Errorf("it has %v", n.Spec.Drivers)
		}
		return err
	})
	return d
}

func (d *csiDriver) socket() string { return d.node.Dir("kubelet", "plugins", csiName, "csi.sock") }

// claim creates a volume in the driver, with a PersistentVolume and a claim, and returns the volume's handle.
func (d *csiDriver) claim(name string) (handle string) {
	d.Helper()
	return d.claimAs(name, v1.PersistentVolumeFilesystem, &pb.VolumeCapability{AccessType: &pb.VolumeCapability_Mount{Mount: &pb.VolumeCapability_MountVolume{}}})
}

// claimAs is claim for a volume mode, with the driver's word for it.
func (d *csiDriver) claimAs(name string, mode v1.PersistentVolumeMode, access *pb.VolumeCapability) (handle string) {
	d.Helper()
	connection, err := grpc.NewClient("unix:"+d.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(d.Context(), 30*time.Second)
	defer cancel()
	access.AccessMode = &pb.VolumeCapability_AccessMode{Mode: pb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}
	made, err := pb.NewControllerClient(connection).CreateVolume(ctx, &pb.CreateVolumeRequest{Name: d.name + "-" + name, VolumeCapabilities: []*pb.VolumeCapability{access},
		CapacityRange: &pb.CapacityRange{RequiredBytes: 1 << 20}})
	if err != nil {
		d.Fatal(err)
	}
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: d.name + "-" + name}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, VolumeMode: &mode, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain, ClaimRef: &v1.ObjectReference{Namespace: d.name, Name: name},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: csiName, VolumeHandle: made.Volume.VolumeId}},
	}}
	if _, err := client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		if err := client.CoreV1().PersistentVolumes().Delete(context.Background(), pv.Name, metav1.DeleteOptions{}); err != nil {
			d.Error(err)
		}
	})
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: d.name}, Spec: v1.PersistentVolumeClaimSpec{
		VolumeName: pv.Name, VolumeMode: &mode, StorageClassName: new(""), AccessModes: modes, Resources: v1.VolumeResourceRequirements{Requests: size},
	}}
	if _, err := client.CoreV1().PersistentVolumeClaims(d.name).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
	return made.Volume.VolumeId
}

// uses starts a pod that writes /v/<its name> into a volume and then becomes Ready.
func (d *csiDriver) uses(name string, source v1.VolumeSource) {
	d.Helper()
	pod := d.pod(name, d.node, "shell", "-c", "write /v/"+name+" x; sleep")
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: source}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	readsAll(pod, "/v/"+name)
	d.create(pod)
}

func claimed(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// calls returns how many calls of a method for a volume the driver has received.
func (d *csiDriver) calls(method, handle string) int {
	d.Helper()
	log, err := os.ReadFile(filepath.Join(d.data, "calls.log"))
	if err != nil {
		d.Fatal(err)
	}
	return strings.Count(string(log), "begin "+method+" "+handle+" ")
}

// wants compares how often the volume was staged, published, unpublished and unstaged.
func (d *csiDriver) wants(handle string, want ...int) {
	d.Helper()
	var got []int
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		got = append(got, d.calls(method, handle))
	}
	if !slices.Equal(got, want) {
		d.Errorf("volume %s was staged, published, unpublished, unstaged %v times, want %v", handle, got, want)
	}
}

// ends deletes pods and waits until they are gone.
func (d *csiDriver) ends(names ...string) {
	d.Helper()
	for _, name := range names {
		d.must(client.CoreV1().Pods(d.name).Delete(context.Background(), name, metav1.DeleteOptions{}))
	}
	for _, name := range names {
		d.eventually(60*time.Second, "pod "+name+" gone", func(ctx context.Context) error {
			_, err := client.CoreV1().Pods(d.name).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("still there (%v)", err)
		})
	}
}

// left lists mounts and records of CSI volumes on the node.
func (d *csiDriver) left() (out []string) {
	d.Helper()
	mounts, err := d.node.Command(context.Background(), "cat", "/proc/self/mounts").Output()
	if err != nil {
		d.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, d.node.Dir("kubelet")) && (strings.Contains(line, "kubernetes.io~csi") || strings.Contains(line, "globalmount")) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	for _, pattern := range []string{"plugins/kubernetes.io/csi/*/*/vol_data.json", "pods/*/volumes/kubernetes.io~csi/*/vol_data.json"} {
		files, err := filepath.Glob(d.node.Dir("kubelet", pattern))
		if err != nil {
			d.Fatal(err)
		}
		out = append(out, files...)
	}
	return out
}

// measures waits until /stats/summary shows the driver's figures for a claim: no file system has that number of inodes.
func (d *csiDriver) measures(claim string) {
	d.Helper()
	const inodes = 1 << 20
	d.eventually(60*time.Second, "/stats/summary has figures of claim "+claim, func(ctx context.Context) error {
		b, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(d.node.Name).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
		if err != nil {
			return err
		}
		var all summary.Summary
		if err := json.Unmarshal(b, &all); err != nil {
			return err
		}
		for _, p := range all.Pods {
			for _, v := range p.VolumeStats {
				if v.PVCRef != nil && *v.PVCRef == (summary.PVCReference{Name: claim, Namespace: d.name}) && v.Inodes != nil && *v.Inodes == inodes {
					return nil
				}
			}
		}
		return errors.New("it has none")
	})
}

// TestCSI: two pods share a volume of a CSI driver, and an inline volume belongs to its pod. Both survive a kill of the
// kubelet, also between stage and publish, and leave nothing behind.
func TestCSI(t *testing.T) {
	s := newSpace(t)
	d := newCSIDriver(s, cluster.Nodes[1])
	kubelet := d.node.Process("kubelet")
	kill := func() {
		t.Helper()
		s.must(kubelet.Kill9(context.Background()))
		s.must(kubelet.Start(context.Background()))
	}
	shared, second := d.claim("shared"), d.claim("second")
	d.uses("a", claimed("shared"))
	d.uses("b", claimed("shared"))
	d.uses("inline", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: csiName}})
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
	s.must(kubelet.Kill9(context.Background()))
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
	if left := d.left(); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
	content, err := filepath.Glob(filepath.Join(d.data, "*", shared, "content", "*"))
	if err != nil || len(content) != 2 {
		t.Errorf("the volume has %q, %v; want the files of both pods", content, err)
	}
}

// TestCSIBlock: a pod writes to a real block device of a CSI driver, also after the kubelet was killed while the driver published it. The next pod reads
// what was written, one that may only read cannot write, and no device is left.
func TestCSIBlock(t *testing.T) {
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
	s.must(kubelet.Kill9(context.Background()))
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
	if devices, err := d.node.Command(context.Background(), "losetup", "--associated", image).Output(); err != nil || len(devices) > 0 {
		t.Errorf("left: %s, %v", devices, err)
	}
	if left := d.left(); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
}
