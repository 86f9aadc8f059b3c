package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/kubeclient"
)

// TestFlexVolumeInUse: a volume that a former life has attached, and whose driver is missing, is in use on the Node until the driver is back.
func TestFlexVolumeInUse(t *testing.T) {
	cfg := config(t)
	cfg.FlexDir = t.TempDir()
	target := filepath.Join(cfg.RootDir, "pods/a/volumes/example.com~dir/pv")
	device := filepath.Join(cfg.RootDir, "plugins/kubernetes.io/flexvolume/example.com/dir/mounts/pv")
	if err := errors.Join(os.MkdirAll(target, 0o750), os.MkdirAll(device, 0o750), os.WriteFile(filepath.Join(target, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	client := clientsettest.NewClientset()
	k, err := New(cfg, kubeclient.Clients{Main: client, Events: client, Heartbeat: client, Reviews: client})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	defer func() { // a kubelet that runs on would make its directories again after they were removed
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	await(t, "the Node lists the volume as in use", func() bool {
		return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool {
			patch, ok := a.(clienttesting.PatchAction)
			if ok && patch.GetSubresource() == "status" && strings.Contains(string(patch.GetPatch()), `"volumesInUse":["example.com/dir/pv"]`) {
				return true
			}
			made, ok := a.(clienttesting.CreateAction) // of a Node that is new
			if !ok {
				return false
			}
			node, ok := made.GetObject().(*v1.Node)
			return ok && slices.Equal(node.Status.VolumesInUse, []v1.UniqueVolumeName{"example.com/dir/pv"})
		})
	})
	if _, err := os.Stat(device); err != nil {
		t.Errorf("the device of a volume that is in use: %v", err)
	}
}

// TestNoFlexDirectory: without a directory of drivers there is no such kind.
func TestNoFlexDirectory(t *testing.T) {
	client := clientsettest.NewClientset()
	k, err := New(config(t), kubeclient.Clients{Main: client, Events: client, Heartbeat: client, Reviews: client})
	if err != nil {
		t.Fatal(err)
	}
	defer k.events.stop()
	spec := &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: "example.com/dir"}}}
	if plugin := k.volumes.Plugin(&v1.Pod{}, spec); plugin != "" {
		t.Errorf("the kind is %s", plugin)
	}
}
