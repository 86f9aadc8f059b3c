package flex

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

const volumeName = "example.com/dir/pv"

// attaching is a rig whose driver attaches, with the volume pv attached as /dev/sdx.
func attaching(t *testing.T) *rig {
	r := newRig(t, volumetest.Linux())
	r.driver.set("init", success) // attaching is the default
	r.attach()
	return r
}

// attach shows the agent that the volume is attached, as soon as it is in use.
func (r *rig) attach() {
	r.kind.inUse.Add(volumeName, "attach")
	r.kind.Reported(r.show(volumeName, map[string]string{volumeName: "/dev/sdx"}))
	r.kind.inUse.Drop(volumeName, "attach")
}

// TestAttach: nothing is mounted before the Node says that the volume is in use and attached; it is in use until it is unmounted from the node.
func TestAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, volumetest.Linux())
		r.driver.set("init", success)
		p := r.claimed("a", false)
		r.refuses(p, `flexVolume driver example.com/dir: volume not attached according to node status for volume "pv" after 2m0s; the driver attaches volumes`)
		<-r.changed
		if got := r.kind.InUse(); !slices.Equal(got, []v1.UniqueVolumeName{volumeName}) {
			t.Errorf("in use: %q", got)
		}
		prepared := make(chan error, 1)
		go func() { _, err := r.Prepare(t.Context(), p); prepared <- err }()
		device := map[string]string{volumeName: "/dev/sdx"}
		for why, node := range map[string]*v1.Node{"not reported as in use": r.show("", device), "the agent has not reported it": r.show(volumeName, device)} {
			synctest.Wait()
			select {
			case err := <-prepared:
				t.Fatalf("%s: Prepare returned %v", why, err)
			default:
			}
			_ = node
		}
		r.want("init")
		r.kind.Reported(r.show(volumeName, device))
		if err := <-prepared; err != nil {
			t.Fatal(err)
		}
		r.want("init, waitforattach sdx, mountdevice pv sdx-1, mount pv")
		if want := r.path("plugins/kubernetes.io/flexvolume/example.com/dir/mounts/pv"); r.Kernel.Points[0] != want {
			t.Errorf("mounted at %q, want %s", r.Kernel.Points, want)
		}
		if got := r.driver.options["mountdevice"]; strings.Contains(got, "pod.name") || !strings.Contains(got, `"kubernetes.io/fsType":"ext4"`) {
			t.Errorf("options of mountdevice: %s", got)
		}
		r.restart()
		if got := r.kind.InUse(); !slices.Equal(got, []v1.UniqueVolumeName{volumeName}) {
			t.Errorf("in use after a restart: %q", got)
		}
		r.driver.calls = nil
		r.MustPrepare(p)
		r.mustClean("a")
		r.want("init, unmount pv, unmountdevice pv")
		r.nothingLeft()
	})
}

// TestTwoPodsOneDevice: the volume is mounted for the node once, and unmounted from it with the last pod.
func TestTwoPodsOneDevice(t *testing.T) {
	r := attaching(t)
	r.kind.inUse.Add(volumeName, "a")
	r.attach()
	r.MustPrepare(r.claimed("a", false))
	r.MustPrepare(r.claimed("b", true))
	r.mustClean("a")
	r.want("init, waitforattach sdx, mountdevice pv sdx-1, mount pv, mount pv, unmount pv")
	r.driver.calls = nil
	r.mustClean("b")
	r.want("unmount pv, unmountdevice pv")
	r.nothingLeft()
}

// TestFilesLeft: files that a driver has left in the pod's directory do not keep the volume mounted for the node.
func TestFilesLeft(t *testing.T) {
	r := attaching(t)
	r.kind.inUse.Add(volumeName, "a")
	r.attach()
	dir := r.MustPrepare(r.claimed("a", false))["v"]
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.mustClean("a")
	r.want("init, waitforattach sdx, mountdevice pv sdx-1, mount pv, unmount pv, unmountdevice pv")
	r.nothingLeft()
}

// TestDeviceOrphans: a device that could not be unmounted with its pod is unmounted later, also after a restart, and stays in use until then.
func TestDeviceOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := attaching(t)
		r.kind.inUse.Add(volumeName, "a")
		r.attach()
		r.MustPrepare(r.claimed("a", false))
		r.driver.set("unmountdevice", failure)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- r.kind.Run(ctx) }()
		r.mustClean("a")
		if _, err := os.Stat(r.Dir("a")); err == nil {
			t.Error("the pod's directory waits for the device")
		}
		if got := r.kind.InUse(); len(got) != 1 || len(r.Kernel.Points) != 1 {
			t.Errorf("in use: %q, mounted: %q", got, r.Kernel.Points)
		}
		time.Sleep(volume.FirstTidy / 2)
		r.driver.set("unmountdevice", "")
		time.Sleep(3 * volume.FirstTidy)
		synctest.Wait()
		r.nothingLeft()
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}

		// Killed between the pod's end and that of the device.
		r.kind.inUse.Add(volumeName, "b")
		r.attach()
		r.MustPrepare(r.claimed("b", false))
		r.driver.set("unmountdevice", failure)
		r.mustClean("b")
		r.driver.set("unmountdevice", "")
		r.restart()
		ctx, cancel = context.WithCancel(t.Context())
		go func() { ran <- r.kind.Run(ctx) }()
		synctest.Wait()
		r.nothingLeft()
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}

// TestDeviceDefaults: what a driver leaves to the kubelet, and what the kubelet does not do for it.
func TestDeviceDefaults(t *testing.T) {
	for _, test := range []struct {
		says, want string
	}{
		{"waitforattach", "init, waitforattach sdx, mountdevice pv sdx, mount pv, unmount pv, unmountdevice pv"},
		{"mount", "init, waitforattach sdx, mountdevice pv sdx-1, mount pv, unmount pv, unmountdevice pv"},
		{"unmountdevice", "init, waitforattach sdx, mountdevice pv sdx-1, mount pv, unmount pv, unmountdevice pv"},
	} {
		r := attaching(t)
		r.kind.inUse.Add(volumeName, "a")
		r.attach()
		r.driver.set(test.says, lacking)
		target := r.MustPrepare(r.claimed("a", false))["v"]
		if test.says == "mount" && !strings.HasPrefix(r.Kernel.Options[target], "bind ") {
			t.Errorf("%s: %q", target, r.Kernel.Options)
		}
		r.mustClean("a")
		r.want(test.want)
		r.nothingLeft()
	}

	// A driver that mounts nothing for the node is called again for the next pod, because its directory was removed with the last.
	r := attaching(t)
	r.driver.mounts = false
	for _, uid := range []string{"a", "b"} {
		r.kind.inUse.Add(volumeName, types.UID(uid))
		r.attach()
		r.MustPrepare(r.claimed(uid, false))
		r.mustClean(uid)
	}
	r.want("init, waitforattach sdx, mountdevice pv sdx-1, mount pv, unmount pv, waitforattach sdx, mountdevice pv sdx-1, mount pv, unmount pv")
	r.nothingLeft()

	r = attaching(t)
	r.kind.inUse.Add(volumeName, "a")
	r.attach()
	r.driver.set("mountdevice", lacking)
	r.refuses(r.claimed("a", false), `the driver answered "Not supported" for /dev/sdx-1, which this node agent does not format by itself`)
	r.driver.set("waitforattach", failure)
	r.restart()
	r.kind.inUse.Add(volumeName, "a")
	r.attach()
	r.refuses(r.claimed("a", false), "waitforattach command failed, status: Failure, reason: no")
	r.mustClean("a")
	r.nothingLeft()
}

// TestAttachedFromUpstream: mounts of upstream's kubelet for pods and for the node are unmounted; stray files are not ours.
func TestAttachedFromUpstream(t *testing.T) {
	r := attaching(t)
	target, device := r.path("pods/a/volumes/example.com~dir/pv"), r.path("plugins/kubernetes.io/flexvolume/example.com/dir/mounts/pv")
	if err := errors.Join(os.MkdirAll(target, 0o750), os.MkdirAll(device, 0o750), os.WriteFile(r.path("plugins/kubernetes.io/flexvolume/file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	r.Kernel.Points = []string{device, target}
	r.restart()
	if got := r.kind.InUse(); len(got) != 1 {
		t.Errorf("in use: %q", got)
	}
	r.mustClean("a")
	r.want("init, unmount pv, unmountdevice pv")
	r.nothingLeft()
}
