package kinds_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func TestEmptyDir(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	p := volumetest.Pod(volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		volumetest.Vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: new(resource.MustParse("10Mi"))}}))
	paths := r.MustPrepare(p)
	if fi, err := os.Stat(paths["disk"]); err != nil || fi.Mode() != fs.ModeDir|0o777 {
		t.Errorf("%v, %v", fi, err)
	}
	if got := r.Kernel.Options[paths["mem"]]; got != "mode=1777,size=10485760" || len(r.Kernel.Points) != 1 {
		t.Errorf("mounts %q, options %q", r.Kernel.Points, got)
	}
	// From now on the directory is the pod's.
	if err := errors.Join(os.WriteFile(paths["disk"]+"/f", []byte("x"), 0o600), os.Chmod(paths["disk"], 0o700)); err != nil {
		t.Fatal(err)
	}
	r.MustPrepare(p)
	if fi, _ := os.Stat(paths["disk"]); fi.Mode().Perm() != 0o700 || len(r.Kernel.Points) != 1 {
		t.Errorf("second Prepare changed mode to %v, mounts %q", fi.Mode(), r.Kernel.Points)
	}
	r.Kernel.Points = nil // reboot
	r.MustPrepare(p)
	if len(r.Kernel.Points) != 1 {
		t.Error("memory was not mounted again after a reboot")
	}
	w := volumetest.New(t, volumetest.Windows())
	w.MustPrepare(p)
	if len(w.Kernel.Points) != 0 {
		t.Error("Windows mounted memory")
	}
}
