package flex

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

const (
	grownPod = `pod shop/web a Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv" n`
	grownPVC = `claim shop/data claim-1 Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv" n`
	notGrown = `pod shop/web a Warning VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv" : expandfs command failed`
)

func gibi(n int64) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
}

// grown gives the claim of pods a request of 2Gi, which the controller has given to its volume of 1Gi.
func (r *rig) grown() *v1.PersistentVolumeClaim {
	r.wait() // no one reads them
	claim, pv := r.API.Claims["shop/data"], r.API.Volumes["pv"]
	pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests, claim.Status.AllocatedResources = gibi(2), gibi(1), gibi(2), gibi(2)
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending}}
	return claim
}

// settled is the claim after its status was patched.
func settled(claim *v1.PersistentVolumeClaim) {
	claim.Status.Capacity, claim.Status.AllocatedResourceStatuses, claim.Status.Conditions = gibi(2), nil, nil
}

// TestGrow: the driver expands the volume of a claim that has grown, once, with upstream's arguments; the claim's status and Events say so.
func TestGrow(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.claimed("a", false)
	r.MustPrepare(p)
	r.want("init, mount pv")
	claim := r.grown()
	r.MustPrepare(p)
	const calls = "init, mount pv, expandfs . pv 2147483648 1073741824"
	r.want(calls)
	if got := r.driver.options["expandfs"]; !strings.Contains(got, `"kubernetes.io/readwrite":"rw"`) || !strings.Contains(got, `"kubernetes.io/pvOrVolumeName":"pv"`) || strings.Contains(got, "pod.name") {
		t.Errorf("options of expandfs: %s", got)
	}
	const growing = `shop/data {"metadata":{"resourceVersion":""},"status":{"allocatedResourceStatuses":{"storage":"NodeResizeInProgress"}}}`
	const patch = `shop/data {"metadata":{"resourceVersion":"+"},"status":{"allocatedResourceStatuses":{"storage":null},"capacity":{"storage":"2Gi"},"conditions":[]}}`
	if !slices.Equal(r.patches, []string{growing, patch}) {
		t.Errorf("patches of the claim: %q", r.patches)
	}
	if got := r.events.Take(); !slices.Equal(got, []string{grownPod, grownPVC}) {
		t.Errorf("Events %q", got)
	}
	settled(claim)
	r.MustPrepare(p)
	r.want(calls)
	r.mustClean("a")
	r.nothingLeft()

	// A claim that grew while no pod had it is expanded with its next pod, and without the driver's capability not at all.
	for _, test := range []struct{ capabilities, calls string }{
		{plainInit, "init, mount pv, expandfs . pv 2147483648 1073741824"},
		{`{"status": "Success", "capabilities": {"attach": false, "requiresFSResize": false}}`, "init, mount pv"},
	} {
		r.driver.calls = nil
		r.driver.set("init", test.capabilities)
		r.restart()
		r.grown()
		r.MustPrepare(r.claimed("a", false))
		r.want(test.calls)
		r.mustClean("a")
	}
}

// TestGrowDevice: an attached volume's driver gets its device too, which after a restart of the agent is the Node's.
func TestGrowDevice(t *testing.T) {
	r := attaching(t)
	r.kind.inUse.Add(volumeName, "a")
	r.attach()
	p := r.claimed("a", false)
	claim := r.grown()
	r.MustPrepare(p)
	r.want("init, waitforattach sdx, mountdevice pv sdx-1, mount pv, expandfs sdx-1 pv 2147483648 1073741824")
	settled(claim)
	r.restart()
	r.grown()
	r.driver.calls = nil
	r.MustPrepare(p)
	r.want("init, expandfs sdx pv 2147483648 1073741824")
	r.mustClean("a")
	r.nothingLeft()
}

// TestGrowFails: users see what the driver says, and the claim's condition; running pods keep the volume.
func TestGrowFails(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	r.driver.set("expandfs", failure)
	p := r.claimed("a", false)
	claim := r.grown()
	r.MustPrepare(p)
	r.want("init, mount pv, expandfs . pv 2147483648 1073741824")
	if got := r.events.Take(); !slices.Equal(got, []string{notGrown + ", status: Failure, reason: no"}) {
		t.Errorf("Events %q", got)
	}
	if len(r.patches) != 2 || !strings.Contains(r.patches[1], `"type":"NodeResizeError","status":"True"`) ||
		!strings.Contains(r.patches[1], `failed to expand pvc with expandfs command failed, status: Failure, reason: no`) || strings.Contains(r.patches[1], "capacity") {
		t.Errorf("patches of the claim: %q", r.patches)
	}
	claim.Status.Conditions = append(claim.Status.Conditions, v1.PersistentVolumeClaimCondition{Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue})

	// The user gives up the larger size, so the node does as well.
	claim.Status.AllocatedResources, r.API.Volumes["pv"].Spec.Capacity, claim.Status.Capacity = gibi(9), gibi(9), gibi(1)
	claim.Spec.Resources.Requests = gibi(9)
	for _, request := range []int64{9, 2} {
		claim.Spec.Resources.Requests = gibi(request)
		r.MustPrepare(p)
		r.wait()
	}
	if last := r.patches[len(r.patches)-1]; !strings.Contains(last, "NodeResizeInfeasible") {
		t.Errorf("patches of the claim: %q", r.patches)
	}
	claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInfeasible
	r.driver.calls = nil
	r.MustPrepare(p)
	r.want("")
	r.mustClean("a")
	r.nothingLeft()
}

// TestGrowReadOnly: a pod that has the volume read-only does not expand it, and says so once.
func TestGrowReadOnly(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.claimed("a", true)
	r.grown()
	for range 2 {
		r.MustPrepare(p)
		r.want("init, mount pv")
	}
	const message = ` Warning FileSystemResizeFailed MountVolume.NodeExpandVolume failed for volume "pv" requested read-only file system`
	if got := r.events.Take(); !slices.Equal(got, []string{"pod shop/web a" + message, "claim shop/data claim-1" + message}) || len(r.patches) > 0 {
		t.Errorf("Events %q, patches %q", got, r.patches)
	}
}

// TestGrowByItself: the kubelet expands the file system on a device whose driver does not.
func TestGrowByItself(t *testing.T) {
	for _, test := range []struct {
		found, calls, event string
		nothing             bool
	}{
		{"ext4\n", "blkid sdx-1, resize2fs sdx-1", grownPod, false},
		{"xfs\n", "blkid sdx-1, xfs_growfs pv", grownPod, false},
		{"btrfs\n", "blkid sdx-1, btrfs pv", grownPod, false},
		{"", "blkid sdx-1", grownPod, true},
		{"zfs_member\n", "blkid sdx-1", strings.TrimSuffix(notGrown, "expandfs command failed") + `cannot expand file system "zfs_member" on /dev/sdx-1: want ext3, ext4, xfs or btrfs, or a driver that has the call expandfs`, false},
	} {
		r := attaching(t)
		r.driver.set("expandfs", lacking)
		r.driver.says["blkid"] = test.found
		if test.nothing {
			r.driver.fails["blkid"] = &command.ExitError{Code: 2, State: "exit status 2"}
		}
		r.kind.inUse.Add(volumeName, "a")
		r.attach()
		p := r.claimed("a", false)
		r.grown()
		r.MustPrepare(p)
		r.want("init, waitforattach sdx, mountdevice pv sdx-1, mount pv, expandfs sdx-1 pv 2147483648 1073741824, " + test.calls)
		if got := r.events.Take(); len(got) == 0 || got[0] != test.event {
			t.Errorf("%q: Events %q", test.found, got)
		}
		r.mustClean("a")
		r.nothingLeft()
	}

	// Without a device there is nothing that the kubelet can do.
	r := newRig(t, volumetest.Linux())
	r.driver.set("expandfs", lacking)
	p := r.claimed("a", false)
	r.grown()
	r.MustPrepare(p)
	r.wait()
	if got := r.events.Take(); len(got) != 1 || !strings.HasPrefix(got[0], notGrown+`: the driver answered "Not supported"; want a driver that expands`) {
		t.Errorf("Events %q", got)
	}
}

// TestGrowGone: a driver that has disappeared, or a pod that has ended meanwhile, is no failed expansion.
func TestGrowGone(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.claimed("a", false)
	r.MustPrepare(p)
	r.grown()
	if err := errors.Join(os.RemoveAll(r.dir), os.Mkdir(r.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	r.MustPrepare(p)
	r.want("init, mount pv")
	r.install(driverName)
	r.driver.set("expandfs", success)
	d, u := described{driver: driverName, spec: "pv"}, use{"gone", driverName, "pv"}
	driver, err := r.kind.drivers.find(t.Context(), driverName)
	if err != nil {
		t.Fatal(err)
	}
	gone := expansion{r.kind, driver, u, r.kind.tree.target(u), d.plainOptions()}
	if err := gone.expand(t.Context(), resource.MustParse("1Gi"), resource.MustParse("2Gi")); err == nil || err.Error() != "there is nothing to expand" {
		t.Errorf("a pod that has ended: %v", err)
	}
	if got := r.events.Take(); len(got) > 0 || len(r.patches) > 0 {
		t.Errorf("Events %q, patches %q", got, r.patches)
	}
}
