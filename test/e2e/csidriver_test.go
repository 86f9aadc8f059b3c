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

	"github.com/winkube/winkube/test/csidriver"
	"github.com/winkube/winkube/test/lab"
)

// csiDriver is the driver of test/csidriver on one node.
type csiDriver struct {
	*space
	node *lab.Host
	data string
}

// newCSIDriver starts the driver on a node and waits until it serves. At the end of the test nothing of it is left.
func newCSIDriver(s *space, node *lab.Host) *csiDriver {
	s.Helper()
	d := &csiDriver{s, node, node.CSIData()}
	d.remove(s.Context()) // a run that was interrupted may have left it
	s.must(createCSIDriver(s.Context()))
	s.Cleanup(d.end)
	node.CSIDriver = true
	s.must(d.process().Start(s.Context()))
	d.serves()
	return d
}

// createCSIDriver creates the API object of the driver, unless it exists.
func createCSIDriver(ctx context.Context) error {
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: lab.CSIDriverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false), PodInfoOnMount: new(true),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}}}
	if _, err := client.StorageV1().CSIDrivers().Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (d *csiDriver) process() *lab.Process { return d.node.Process("csidriver") }

func (d *csiDriver) outside() csidriver.Outside { return csidriver.Outside{Data: d.data} }

// dial makes a connection to the driver; the caller closes it.
func (d *csiDriver) dial() *grpc.ClientConn {
	d.Helper()
	connection, err := grpc.NewClient("unix:"+d.node.CSISocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.Fatal(err)
	}
	return connection
}

// serves waits until the driver answers, the kubelet has registered it, and the node's CSINode lists it. The last is no proof of the others: a driver
// that was killed has left its entry and its sockets.
func (d *csiDriver) serves() {
	d.Helper()
	d.eventually(60*time.Second, "CSI driver of "+d.node.Name+" serves; its log: "+d.process().Log(), func(ctx context.Context) error {
		if err := d.answers(ctx); err != nil {
			return err
		}
		if registered, err := d.outside().Registered(); err != nil || !registered {
			return fmt.Errorf("not registered (%v)", err)
		}
		return nil
	})
}

// answers returns nil if the driver answers and the node's CSINode lists it.
func (d *csiDriver) answers(ctx context.Context) error {
	connection := d.dial() // each time: one that has failed waits before it tries again
	defer connection.Close()
	if _, err := pb.NewIdentityClient(connection).Probe(ctx, &pb.ProbeRequest{}); err != nil {
		return err
	}
	return d.listed(ctx, true)
}

// listed returns nil if the node's CSINode lists the driver, or does not, as wanted.
func (d *csiDriver) listed(ctx context.Context, want bool) error {
	n, err := client.StorageV1().CSINodes().Get(ctx, d.node.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == lab.CSIDriverName }) != want {
		return fmt.Errorf("the CSINode of %s has %v", d.node.Name, n.Spec.Drivers)
	}
	return nil
}

// remove stops the driver and removes its data and what a killed one leaves.
func (d *csiDriver) remove(ctx context.Context) {
	d.Helper()
	d.node.CSIDriver = false
	d.must(d.process().Stop(ctx))
	for _, path := range []string{d.node.CSIRegistration(), d.node.CSISocket(), d.data} {
		d.must(os.RemoveAll(path))
	}
}

// end ends the pods that use the driver, which a failed test leaves, while it still serves them. Then it removes the driver.
func (d *csiDriver) end() {
	defer d.forget() // also if the rest fails: the next test starts a driver of that name
	if d.Failed() {
		diagnose(d.T, d.name) // after this the pods are gone
	}
	d.revive()
	d.empty()
}

// forget removes the driver and waits until the kubelet has noticed: one that is killed before that leaves the driver in the CSINode.
func (d *csiDriver) forget() {
	ctx := context.Background()
	d.remove(ctx)
	d.eventually(60*time.Second, "the driver is gone", func(ctx context.Context) error { return d.listed(ctx, false) })
	if err := client.StorageV1().CSIDrivers().Delete(ctx, lab.CSIDriverName, metav1.DeleteOptions{}); err != nil {
		d.Error(err)
	}
}

// killKubelet kills the kubelet, which the test must start again, and notes that in the driver's log of calls.
func (d *csiDriver) killKubelet() {
	d.Helper()
	d.must(d.node.Process("kubelet").Kill9(context.Background()))
	d.must(d.outside().KubeletKilled())
}

// inOrder compares the driver's calls with what the CSI specification wants of a kubelet. No volume may be staged or published any more.
func (d *csiDriver) inOrder() {
	d.Helper()
	lines, err := d.outside().Calls()
	d.must(err)
	wrong, left := csidriver.Order(lines)
	if len(wrong) > 0 {
		d.Errorf("calls out of order:\n%s\nof these:\n%s", strings.Join(wrong, "\n"), strings.Join(lines, "\n"))
	}
	if len(left) > 0 {
		d.Errorf("by the driver's calls:\n%s", strings.Join(left, "\n"))
	}
}

// endedWell checks that nothing of any volume is left on the node, that the calls were in order, and that a volume has so many files.
func endedWell(d *csiDriver, handle string, files int) {
	d.Helper()
	if left := d.left(); len(left) > 0 {
		d.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
	d.inOrder()
	content, err := filepath.Glob(filepath.Join(d.data, "*", handle, "content", "*"))
	if err != nil || len(content) != files {
		d.Errorf("the volume has %q, %v; want %d files, one of each pod", content, err, files)
	}
}

// revive ends what the test has done to the driver's calls, and starts the driver and the kubelet if they do not run. It waits until both serve.
func (d *csiDriver) revive() {
	d.Helper()
	for _, method := range csidriver.Methods {
		d.must(d.outside().Resume(method))
	}
	ctx := context.Background()
	for _, process := range []*lab.Process{d.process(), d.node.Process("kubelet")} {
		if process.Running() {
			continue
		}
		if !d.Failed() {
			d.Errorf("the test has left %s stopped", process.Name)
		}
		d.must(process.Start(ctx))
	}
	d.serves()
	d.nodeReady(d.node.Name, true, 60*time.Second)
}

// claim creates a volume in the driver, with a PersistentVolume and a claim, and returns the volume's handle.
func (d *csiDriver) claim(name string) (handle string) {
	d.Helper()
	return d.claimAs(name, v1.PersistentVolumeFilesystem, &pb.VolumeCapability{AccessType: &pb.VolumeCapability_Mount{Mount: &pb.VolumeCapability_MountVolume{}}})
}

// claimAs is claim for a volume mode, with the driver's word for it.
func (d *csiDriver) claimAs(name string, mode v1.PersistentVolumeMode, access *pb.VolumeCapability) (handle string) {
	d.Helper()
	connection := d.dial()
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
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: lab.CSIDriverName, VolumeHandle: made.Volume.VolumeId}},
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
	d.create(d.using(name, source))
}

// using is the pod of uses.
func (d *csiDriver) using(name string, source v1.VolumeSource) *v1.Pod {
	pod := d.pod(name, d.node, "shell", "-c", "write /v/"+name+" x; sleep")
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: source}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	readsAll(pod, "/v/"+name)
	return pod
}

func claimed(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// calls returns how many calls of a method for a volume the driver has received.
func (d *csiDriver) calls(method, handle string) int {
	d.Helper()
	lines, err := d.outside().Calls()
	if err != nil {
		d.Fatal(err)
	}
	n := 0
	for _, line := range lines {
		if strings.HasPrefix(line, "begin "+method+" "+handle+" ") {
			n++
		}
	}
	return n
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
		if strings.Contains(line, d.node.KubeletDir()) && (strings.Contains(line, "kubernetes.io~csi") || strings.Contains(line, "globalmount")) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	for _, pattern := range []string{"plugins/kubernetes.io/csi/*/*/vol_data.json", "pods/*/volumes/kubernetes.io~csi/*/vol_data.json"} {
		files, err := filepath.Glob(d.node.KubeletDir(pattern))
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
