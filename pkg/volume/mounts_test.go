package volume_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func TestMounts(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	r.API.ConfigMaps["conf"] = map[string]string{"a": "1"}
	p := volumetest.Pod(volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), volumetest.ConfigMapVol("conf", "conf"), volumetest.HostVol("host", t.TempDir(), ""))
	paths := r.MustPrepare(p)
	got, err := r.Mount(p, v1.VolumeMount{Name: "disk", MountPath: "/data"})
	if want := (pod.Mount{Name: "disk", HostPath: paths["disk"], ContainerPath: "/data"}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	both := v1.MountPropagationBidirectional
	got, err = r.Mount(p, v1.VolumeMount{Name: "host", MountPath: "h", ReadOnly: true, MountPropagation: &both})
	if want := (pod.Mount{Name: "host", HostPath: paths["host"], ContainerPath: "/h", ReadOnly: true, Propagation: both}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	// A file by subPath, through the links of the volume.
	got, err = r.Mount(p, v1.VolumeMount{Name: "conf", MountPath: "/etc/a", SubPath: "a"})
	want := filepath.Join(r.Host.Root, "pods/uid-1/volume-subpaths/conf/c/0")
	if err != nil || got.HostPath != want || !got.ReadOnly || !strings.HasPrefix(r.Kernel.Options[want], "bind ") {
		t.Errorf("%+v, %v, %q", got, err, r.Kernel.Options)
	}
	// Made when missing, with the volume's mode; the name from the environment.
	if err := os.Chmod(paths["disk"], 0o2770|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	got, err = r.Mount(p, v1.VolumeMount{Name: "disk", MountPath: "/d", SubPathExpr: "logs/$(POD)/$$x"}, pod.Env{Name: "POD", Value: "old"}, pod.Env{Name: "POD", Value: "web-0"})
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(paths["disk"], "logs/web-0/$x")); err != nil || fi.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 {
		t.Errorf("%v, %v", fi, err)
	}
	for name, vm := range map[string]v1.VolumeMount{
		"has no volume of that name":                                     {Name: "none", MountPath: "/x"},
		`missing value for "NONE"`:                                       {Name: "disk", MountPath: "/x", SubPathExpr: "$(NONE)"},
		"error SubPath `/etc` must not be an absolute path":              {Name: "disk", MountPath: "/x", SubPath: "/etc"},
		"unable to provision SubPath `a/../../b`: must not contain '..'": {Name: "disk", MountPath: "/x", SubPath: "a/../../b"},
		"unable to provision SubPath `..`":                               {Name: "disk", MountPath: "/x", SubPathExpr: "$(DOTS)"},
		"must not contain ':'":                                           {Name: "disk", MountPath: "/x:ro"},
	} {
		if _, err := r.Mount(p, vm, pod.Env{Name: "DOTS", Value: ".."}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v", vm, err)
		}
	}
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{}}
	if _, err := r.Mounts(t.Context(), p, &p.Spec.Containers[0], nil); err == nil {
		t.Error("volumeDevices were accepted")
	}
}

// Links that a container put into its volume lead nowhere outside of it.
func TestSubPathLinks(t *testing.T) {
	for _, platform := range []pod.Platform{volumetest.Linux(), volumetest.Windows()} {
		r := volumetest.New(t, platform)
		if filepath.Separator != '/' {
			t.Skip("making links needs Linux or a privilege")
		}
		p := volumetest.Pod(volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
		dir := r.MustPrepare(p)["disk"]
		outside := t.TempDir()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.MkdirAll(dir+"/real/deep", 0o755))
		for name, target := range map[string]string{"in": "real", "up": "real/deep/../..", "abs": outside, "rel": "../../../../../../../../../../../.." + outside, "loop": "loop",
			"dangling": "nowhere", "out-in-the-middle": "..", "absroot": "/", "self": dir, "proc": "/proc/self/root"} {
			must(os.Symlink(target, filepath.Join(dir, name)))
		}
		for sub, ok := range map[string]bool{
			"in": true, "in/deep": true, "up": true, "up/real": true, "in/new": true,
			"abs": false, "abs/x": false, "rel": false, "rel/x": false, "loop": false, "dangling": false, "out-in-the-middle": false, "out-in-the-middle/new": false,
			"absroot": false, "absroot/etc": false, "self": false, "proc/etc": false,
		} {
			_, err := r.Mount(p, v1.VolumeMount{Name: "disk", MountPath: "/x", SubPath: sub})
			if (err == nil) != ok {
				t.Errorf("%s: subPath %q: %v", platform.OS, sub, err)
			}
		}
		if left, _ := os.ReadDir(outside); len(left) != 0 {
			t.Errorf("made outside of the volume: %v", left)
		}
	}
}

func TestSubPathWindows(t *testing.T) {
	r := volumetest.New(t, volumetest.Windows())
	r.API.ConfigMaps["conf"] = map[string]string{"a": "1"}
	p := volumetest.Pod(volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), volumetest.ConfigMapVol("conf", "conf"))
	paths := r.MustPrepare(p)
	got, err := r.Mount(p, v1.VolumeMount{Name: "disk", MountPath: "/d", SubPath: `a\b`})
	if err != nil || got.HostPath != filepath.Join(paths["disk"], "a", "b") || got.ContainerPath != `C:\d` {
		t.Errorf("%+v, %v", got, err)
	}
	for sub, part := range map[string]string{`..\x`: "must not contain '..'", `C:\x`: "must not be an absolute path", `\x`: "must not be an absolute path", "c:x": "must not be an absolute path",
		"a/nul": "name of a device", "ab:c": "is not a file name", "COM1.txt": "name of a device"} {
		if _, err := r.Mount(p, v1.VolumeMount{Name: "disk", MountPath: "/d", SubPath: sub}); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("subPath %q: %v", sub, err)
		}
	}
}

func TestClean(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	r.API.Secrets["s"] = map[string][]byte{"k": []byte("v")}
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/keep", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := volumetest.Pod(volumetest.Vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}), volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), volumetest.HostVol("host", outside, ""))
	paths := r.MustPrepare(p)
	if _, err := r.Mount(p, v1.VolumeMount{Name: "host", MountPath: "/x", SubPath: "sub"}); err != nil {
		t.Fatal(err)
	}
	r.Kernel.Points = append(r.Kernel.Points, paths["disk"]+"/by the pod", paths["disk"]+"/by the pod") // mounted twice
	if err := errors.Join(os.Symlink(outside, paths["disk"]+"/link"), os.Mkdir(paths["disk"]+"/locked", 0)); err != nil {
		t.Fatal(err)
	}
	if uids, err := r.Leftovers(); err != nil || len(uids) != 1 || uids[0] != "uid-1" {
		t.Errorf("%v, %v", uids, err)
	}
	r.Kernel.Stuck = paths["disk"] + "/by the pod"
	if err := r.Clean(t.Context(), "uid-1"); err == nil {
		t.Error("deleted although something is mounted")
	}
	if _, err := os.Lstat(paths["disk"] + "/link"); err != nil {
		t.Error("deleted before everything was unmounted")
	}
	r.Kernel.Stuck = ""
	for range 2 {
		if err := r.Clean(t.Context(), "uid-1"); err != nil {
			t.Error(err)
		}
	}
	if uids, err := r.Leftovers(); err != nil || len(uids) != 0 || len(r.Kernel.Points) != 0 {
		t.Errorf("left: %v, %q, %v", uids, r.Kernel.Points, err)
	}
	if _, err := os.Stat(outside + "/keep"); err != nil {
		t.Error("deleted through a link")
	}
	// What is where only mount points belong and is not empty may hold data.
	full := filepath.Join(r.Host.Root, "pods/uid-2", "volume-subpaths", "v/c/0/data")
	if err := os.MkdirAll(full, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context(), "uid-2"); err == nil {
		t.Error("deleted below a mount point")
	}
	if _, err := os.Stat(full); err != nil {
		t.Error(err)
	}
}
