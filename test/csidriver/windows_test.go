package csidriver_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/csi/drivers"
	"github.com/winkube/winkube/pkg/plugins"
	"github.com/winkube/winkube/pkg/plugins/pluginstest"
	"github.com/winkube/winkube/pkg/pod"
	csivolume "github.com/winkube/winkube/pkg/volume/csi"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
	"github.com/winkube/winkube/test/csidriver"
)

// objects is an API server that has the driver's object.
type objects struct{ *volumetest.API }

// Claim is also called beside the test, by what looks whether the volume has grown.
func (o objects) Claim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return o.Claims[namespace+"/"+name], nil
}

func (o objects) PatchClaimStatus(_ context.Context, namespace, name string, patch []byte) (*v1.PersistentVolumeClaim, error) {
	return o.Patched(namespace, name, patch)
}

func (o objects) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	return o.KnownCSIDriver(name), nil
}

func (objects) KnownCSIDriver(string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}}
}

func (objects) VolumeAttachment(context.Context, string) (*storagev1.VolumeAttachment, error) {
	return nil, errors.New("no volume is attached")
}

func (objects) NodeState() (*v1.Node, <-chan struct{}) { return nil, nil }

type noEvents struct{}

func (noEvents) PodEvent(string, string, string, string, string, string) {}

func (noEvents) ClaimEvent(string, string, string, string, string, string) {}

// windowsNode is a driver and all parts of a kubelet that its volumes need, as on a Windows Server 2019. The driver makes symbolic links in the place
// of NTFS links, and loopback TCP is in the place of Unix sockets.
type windowsNode struct {
	*running
	*volumetest.Rig
}

func startWindows(t *testing.T) windowsNode {
	t.Helper()
	link := filepath.Join(t.TempDir(), "link")
	err := os.Symlink(t.TempDir(), link)
	if fi, statErr := os.Lstat(link); err != nil || statErr != nil || fi.Mode()&fs.ModeSymlink == 0 { // Wine reports success and makes nothing
		t.Skipf("cannot make links here: %v", errors.Join(err, statErr))
	}
	n := windowsNode{Rig: volumetest.New(t, pod.Platform{OS: "windows", Build: 17763, SharedNetwork: true})}
	root := n.Host.Root
	endpoint := filepath.Join(root, "plugins", "dir.winkube.test", "csi.sock")
	n.running = &running{t: t, root: root, Outside: csidriver.Outside{Data: filepath.Join(t.TempDir(), "data")}}
	wire := func(ctx context.Context, socket string) (net.Conn, error) {
		if filepath.Separator == '/' { // the kubelet writes endpoints as Windows does
			socket = strings.ReplaceAll(strings.TrimPrefix(socket, "C:"), `\`, "/")
		}
		return pluginstest.Loopback(ctx, socket)
	}
	n.registry = drivers.New("n1", drivers.Parts{Counted: func(string, string, time.Duration, error, bool) {}, Clock: clock.RealClock{}, Wire: wire})
	watcher := plugins.New(plugins.Config{
		Dir: filepath.Join(root, "plugins_registry"), Windows: true, Relist: 100 * time.Millisecond, Clock: clock.RealClock{}, Wire: pluginstest.Loopback,
		Handlers: map[string]plugins.Handler{registration.CSIPlugin: n.registry},
	})
	n.run(func(ctx context.Context) error {
		d, err := csidriver.New(csidriver.Config{
			Name: "dir.winkube.test", NodeID: "n1", Endpoint: endpoint, Registry: filepath.Join(root, "plugins_registry"), Data: n.Data,
			Links: true, Listen: pluginstest.ListenLoopback,
		})
		if err != nil {
			return err
		}
		return d.Run(ctx)
	})
	n.run(watcher.Run)
	n.soon(true)
	return n
}

// restart makes a kubelet that only knows what is on disk. boot is the host's.
func (n windowsNode) restart(boot string) {
	n.Restart(csivolume.New(n.Host, csivolume.Parts{
		NodeName: "n1", Drivers: n.registry, Objects: objects{n.API}, Events: noEvents{}, Refresh: n.registry.Refresh, Changed: wake.New(), Clock: n.Clock, Boot: boot,
	}))
}

// calls are the driver's calls for stages and targets, with their outcome.
func (n windowsNode) calls() string {
	calls, err := n.Calls()
	if err != nil {
		n.t.Fatal(err)
	}
	var got []string
	for _, line := range calls {
		if words := strings.Fields(line); words[0] == "end" && (strings.Contains(words[1], "tageV") || strings.Contains(words[1], "ublishV")) {
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(words[1], "Node"), "Volume")+" "+words[len(words)-1])
		}
	}
	return strings.Join(got, ", ")
}

// TestWindowsNode: a volume on Windows from the driver's registration to unstaging, with a reboot in between.
func TestWindowsNode(t *testing.T) {
	n := startWindows(t)
	id, err := n.Make("data", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	n.restart("1")
	n.Bind("data", v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "dir.winkube.test", VolumeHandle: id}})
	a, b := volumetest.Pod(volumetest.ClaimVol(false)), volumetest.Pod(volumetest.ClaimVol(true))
	a.UID, b.UID = "a", "b"
	paths := map[string]string{}
	for _, boot := range []string{"1", "2"} { // the second is after a reboot
		n.restart(boot)
		for _, p := range []*v1.Pod{a, b} {
			n.MustPrepare(p)
			m, err := n.Mount(p, v1.VolumeMount{Name: "v", MountPath: `C:\data`})
			if err != nil || m.ReadOnly != (p == b) || !strings.HasPrefix(m.HostPath, n.Data) {
				t.Fatalf("pod %s: %+v, %v", p.UID, m, err)
			}
			paths[string(p.UID)] = m.HostPath
		}
	}
	if err := os.WriteFile(filepath.Join(paths["a"], "f"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"a", "b"} {
		if got, err := os.ReadFile(filepath.Join(paths["b"], "f")); string(got) != "kept" || err != nil {
			t.Errorf("before the end of %s: %q, %v", uid, got, err)
		}
		if err := n.Clean(t.Context(), map[string]*v1.Pod{"a": a, "b": b}[uid].UID); err != nil {
			t.Fatal(err)
		}
	}
	want := "Stage OK, Publish OK, Publish OK, Stage OK, Publish OK, Publish OK, Unpublish OK, Unpublish OK, Unstage OK"
	if got := n.calls(); got != want {
		t.Errorf("calls %s, want %s", got, want)
	}
	if got, err := os.ReadFile(filepath.Join(paths["a"], "f")); string(got) != "kept" || err != nil {
		t.Errorf("the volume's file: %q, %v", got, err)
	}
	_ = filepath.WalkDir(n.Host.Root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSymlink != 0 {
			t.Errorf("left: %s", path)
		}
		return nil
	})
}
