package csi_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

const (
	stages     = pb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	mountGroup = pb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
)

// inline is a pod with a volume of the driver in its spec.
func inline(source v1.CSIVolumeSource) *v1.Pod {
	source.Driver = driverName
	p := volumetest.Pod(volumetest.Vol("in", v1.VolumeSource{CSI: &source}))
	p.Spec.ServiceAccountName = "builder"
	return p
}

func (r *rig) published() *pb.NodePublishVolumeRequest {
	r.t.Helper()
	calls := r.driver.Calls("NodePublishVolume")
	if len(calls) == 0 {
		r.t.Fatal("nothing was published")
	}
	return calls[len(calls)-1].Request.(*pb.NodePublishVolumeRequest)
}

// TestInline: an inline volume is published with its own handle, what the driver wants to know of the pod, and the Secret in the pod's namespace.
func TestInline(t *testing.T) {
	r := newRig(t)
	p := inline(v1.CSIVolumeSource{ReadOnly: new(true), FSType: new("ext4"), VolumeAttributes: map[string]string{"size": "1"}, NodePublishSecretRef: &v1.LocalObjectReference{Name: "key"}})
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), `volume mode "Ephemeral" not supported by driver disk.example.com (only supports ["Persistent"])`) {
		t.Errorf("%v", err)
	}
	r.rule(storagev1.CSIDriverSpec{PodInfoOnMount: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}})
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), `fetching NodePublishSecretRef shop/key failed`) {
		t.Errorf("%v", err)
	}
	r.want("")
	r.API.Secrets["key"] = map[string][]byte{"password": []byte("x")}
	r.MustPrepare(p)
	r.want("Publish")
	got := r.published()
	if len(got.VolumeId) != len("csi-")+64 || !strings.HasPrefix(got.VolumeId, "csi-") {
		t.Errorf("handle %s", got.VolumeId)
	}
	want := map[string]string{"size": "1", "csi.storage.k8s.io/pod.name": "web", "csi.storage.k8s.io/pod.namespace": "shop", "csi.storage.k8s.io/pod.uid": "uid-1",
		"csi.storage.k8s.io/serviceAccount.name": "builder", "csi.storage.k8s.io/ephemeral": "true"}
	if !maps.Equal(got.VolumeContext, want) || got.Secrets["password"] != "x" || !got.Readonly || got.StagingTargetPath != "" ||
		got.VolumeCapability.GetMount().GetFsType() != "ext4" || len(p.Spec.Volumes[0].CSI.VolumeAttributes) != 1 {
		t.Errorf("%v", got)
	}
	if m, err := r.Mount(p, v1.VolumeMount{Name: "in", MountPath: "/x"}); err != nil || !m.ReadOnly {
		t.Errorf("%+v, %v", m, err)
	}
	if places, err := r.Places(p); err != nil || len(places) != 1 || places[0].Path != got.TargetPath || !places[0].Own {
		t.Errorf("measured: %+v, %v", places, err)
	}
	r.restart()
	if got := r.kind.InUse(); len(got) > 0 {
		t.Errorf("volumesInUse: %q", got)
	}
	r.mustClean("uid-1")
	r.want("Publish Unpublish")
	r.nothingLeft()
}

// TestTokens: the driver gets them by audience, in the context or as a secret, and again when they are renewed; the pod keeps its volume when
// that fails.
func TestTokens(t *testing.T) {
	r := newRig(t)
	spec := storagev1.CSIDriverSpec{AttachRequired: new(false), RequiresRepublish: new(true), TokenRequests: []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: new(int64(1000))}, {}}}
	r.rule(spec)
	p := r.pod("a")
	r.MustPrepare(p)
	tokens := func(text string) (out map[string]struct{ Token string }) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	const key = "csi.storage.k8s.io/serviceAccount.tokens"
	first := tokens(r.published().VolumeContext[key])
	if first["vault"].Token != "shop/default [vault] for a #1" || first[""].Token != "shop/default [] for a #2" || len(first) != 2 {
		t.Errorf("%v", first)
	}
	r.MustPrepare(p)
	r.want("Stage Publish Publish")
	if r.API.Tokens != 2 {
		t.Errorf("%d tokens were requested, want 2", r.API.Tokens)
	}
	r.Clock.SetTime(r.Clock.Now().Add(801 * time.Second))
	spec.ServiceAccountTokenInSecrets = new(true)
	r.rule(spec)
	r.MustPrepare(p)
	got := r.published()
	if second := tokens(got.Secrets[key]); got.VolumeContext[key] != "" || second["vault"].Token != "shop/default [vault] for a #3" || second[""].Token != first[""].Token {
		t.Errorf("%v", second)
	}
	for _, fail := range []func(){
		func() { r.API.Down = errors.New("connection refused") },
		func() {
			r.API.Down = nil
			r.driver.Fail("NodePublishVolume", status.Error(codes.Internal, "vault is sealed"))
		},
	} {
		fail()
		r.Clock.SetTime(r.Clock.Now().Add(801 * time.Second))
		r.MustPrepare(p)
	}
	if on, _ := r.Kernel.IsMount(got.TargetPath); !on {
		t.Error("unmounted after a failed republish")
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestStageRequest: what PersistentVolume and pod say gets to the driver.
func TestStageRequest(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, mountGroup)
	p := r.pod("a")
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(1234))}
	p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	pv := r.API.Volumes["pv"]
	pv.Spec.MountOptions, pv.Spec.CSI.FSType = []string{"noatime"}, "xfs"
	pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "kube-system", Name: "stage"}
	pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "kube-system", Name: "publish"}
	r.API.Secrets["stage"], r.API.Secrets["publish"] = map[string][]byte{"k": []byte("1")}, map[string][]byte{"k": []byte("2")}
	r.MustPrepare(p)
	stage, publish := r.driver.Calls("NodeStageVolume")[0].Request.(*pb.NodeStageVolumeRequest), r.published()
	for _, c := range []*pb.VolumeCapability{stage.VolumeCapability, publish.VolumeCapability} {
		m := c.GetMount()
		if m.GetFsType() != "xfs" || len(m.MountFlags) != 1 || m.MountFlags[0] != "noatime" || m.VolumeMountGroup != "1234" || c.AccessMode.Mode != pb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
			t.Errorf("%v", c)
		}
	}
	if stage.Secrets["k"] != "1" || publish.Secrets["k"] != "2" || stage.VolumeContext["a"] != "1" || publish.VolumeContext["a"] != "1" || !publish.Readonly ||
		publish.StagingTargetPath != stage.StagingTargetPath || stage.StagingTargetPath != r.path(stageDir, "globalmount") {
		t.Errorf("%v\n%v", stage, publish)
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestGroupOfVolume: where the driver does not, the agent gives the volume to the pod's fsGroup, once.
func TestGroupOfVolume(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing a file's group needs root")
	}
	r := newRig(t)
	r.rule(storagev1.CSIDriverSpec{AttachRequired: new(false), FSGroupPolicy: new(storagev1.FileFSGroupPolicy)})
	p := r.pod("a")
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(1234))}
	dir := r.MustPrepare(p)["v"]
	group := func() int64 {
		t.Helper()
		fi, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		gid, _ := access.GroupOf(fi)
		return gid
	}
	if got := group(); got != 1234 {
		t.Errorf("group %d", got)
	}
	if err := os.Chown(dir, 0, 5); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.MustPrepare(p)
	if got := group(); got != 5 {
		t.Errorf("group %d: it was changed again", got)
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestOnePodOnly: a second pod waits for a volume that only one may use, and gets it when the first has ended.
func TestOnePodOnly(t *testing.T) {
	r := newRig(t)
	a, b := r.pod("a"), r.pod("b")
	r.API.Volumes["pv"].Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	r.MustPrepare(a)
	if _, err := r.Prepare(t.Context(), b); err == nil || !strings.Contains(err.Error(), "volume uses the ReadWriteOncePod access mode and is already in use by another pod") {
		t.Errorf("%v", err)
	}
	r.mustClean("a")
	r.MustPrepare(b)
	r.mustClean("b")
	r.nothingLeft()
}

// TestBlock: two pods on one device, at upstream's paths, found by what lies on disk.
func TestBlock(t *testing.T) {
	for _, capable := range []bool{true, false} {
		r := newRig(t)
		if !capable {
			r.driver.SetCapabilities()
		}
		a, b := r.pod("a"), r.pod("b")
		r.API.Volumes["pv"].Spec.VolumeMode = new(v1.PersistentVolumeBlock)
		devices := []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/xvda"}}
		for _, p := range []*v1.Pod{a, b} {
			p.Spec.Containers[0].VolumeDevices = devices
			path := r.MustPrepare(p)["v"]
			if want := r.path("plugins/kubernetes.io/csi/volumeDevices/publish/pv", string(p.UID)); path != want {
				t.Errorf("at %s, want %s", path, want)
			}
			got, err := r.Devices(p, &p.Spec.Containers[0])
			if err != nil || len(got) != 1 || got[0].HostPath != path {
				t.Errorf("%+v, %v", got, err)
			}
			if to, err := os.Readlink(r.path("pods", string(p.UID), "volumeDevices/kubernetes.io~csi/pv")); err != nil || to != path {
				t.Errorf("%s, %v", to, err)
			}
		}
		if c := r.published().VolumeCapability; c.GetBlock() == nil {
			t.Errorf("%v", c)
		}
		if _, err := os.Stat(r.path("plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json")); err != nil {
			t.Error(err)
		}
		r.API.Down = errors.New("connection refused")
		r.restart()
		r.mustClean("a")
		r.mustClean("b")
		want := "Publish Publish Unpublish Unpublish"
		if capable {
			want = "Stage " + want + " Unstage"
		}
		r.want(want)
		r.nothingLeft()
		if _, err := os.Stat(r.path("plugins/kubernetes.io/csi/volumeDevices/pv")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left: %v", err)
		}
	}
}

// TestForgetKeepsFiles: what a driver has left in its directories may be data; it is logged and stays.
func TestForgetKeepsFiles(t *testing.T) {
	r := newRig(t)
	r.MustPrepare(r.pod("a"))
	file := filepath.Join(r.path(stageDir), "globalmount/file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.mustClean("a")
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// TestGrow: a volume whose claim has grown is expanded on the node beside the running pod, once, and its claim says so.
func TestGrow(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	p := r.pod("a")
	claim, pv := r.API.Claims["shop/data"], r.API.Volumes["pv"]
	gigabytes := func(n int64) v1.ResourceList {
		return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
	}
	pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = gigabytes(1), gigabytes(1), gigabytes(1)
	r.MustPrepare(p)
	r.kind.Wait()
	r.want("Stage Publish")

	claim.ResourceVersion, claim.Spec.Resources.Requests = "7", gigabytes(3) // the controller has not begun
	r.MustPrepare(p)
	r.kind.Wait()
	r.want("Stage Publish")

	pv.Spec.Capacity, claim.Status.AllocatedResources = gigabytes(3), gigabytes(2)
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending}, {Type: "Other"}}
	r.driver.Fail("NodeExpandVolume", status.Error(codes.Internal, "busy"))
	for range 2 {
		r.MustPrepare(p)
		r.kind.Wait()
	}
	r.want("Stage Publish Expand Expand")
	got := r.driver.Calls("NodeExpandVolume")[1].Request.(*pb.NodeExpandVolumeRequest)
	if got.CapacityRange.RequiredBytes != 2<<30 || got.VolumePath != r.published().TargetPath || got.StagingTargetPath != r.path(stageDir, "globalmount") {
		t.Errorf("%v", got)
	}
	const growing = `shop/data {"metadata":{"resourceVersion":"7"},"status":{"allocatedResourceStatuses":{"storage":"NodeResizeInProgress"}}}`
	const want = `shop/data {"metadata":{"resourceVersion":"7+"},"status":{"allocatedResourceStatuses":{"storage":null},"capacity":{"storage":"2Gi"},` +
		`"conditions":[{"type":"Other","status":"","lastProbeTime":null,"lastTransitionTime":null}]}}`
	if patches := r.api.patches; len(patches) != 4 || patches[0] != growing || patches[3] != want { // the second says that the driver was busy
		t.Errorf("patches: %q\nwant %s", patches, want)
	}
	const done = ` Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv" n`
	if got := r.events.Take(); len(got) != 3 || got[1] != "pod shop/web a"+done || got[2] != "claim shop/data claim-1"+done {
		t.Errorf("Events: %q", got)
	}

	claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInfeasible
	r.MustPrepare(p)
	r.kind.Wait()
	r.want("Stage Publish Expand Expand")
	r.mustClean("a")
	r.nothingLeft()
}
