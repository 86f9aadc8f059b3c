package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// TestCopiedFiles: a file by subPath is one that the agent keeps, of which the container gets a copy.
func TestCopiedFiles(t *testing.T) {
	r := volumetest.New(t, volumetest.Windows())
	lists := map[string]string{}
	r.SetAccess = func(path, sddl string) error { lists[path] = sddl; return nil }
	r.API.ConfigMaps["conf"] = map[string]string{"a": "1"}
	p := volumetest.Pod(volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), volumetest.ConfigMapVol("conf", "conf"))
	paths := r.MustPrepare(p)
	conf := v1.VolumeMount{Name: "conf", MountPath: `C:\app\app.conf`, SubPath: "a"}
	for _, want := range []string{"1", "2"} { // a later start has what the volume then holds
		r.API.ConfigMaps["conf"]["a"] = want
		r.MustPrepare(p)
		got, err := r.Mount(p, conf)
		if err != nil || !got.Copy || !got.ReadOnly || got.ContainerPath != conf.MountPath {
			t.Fatalf("%+v, %v", got, err)
		}
		if data, err := os.ReadFile(got.HostPath); err != nil || string(data) != want || strings.HasPrefix(got.HostPath, paths["conf"]) {
			t.Errorf("%s: %q, %v; want %q in a place of the agent's own", got.HostPath, data, err, want)
		}
		if list := lists[filepath.Dir(got.HostPath)]; list != "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)" {
			t.Errorf("the copies' directory may be used by %q", list)
		}
	}
	if err := os.WriteFile(filepath.Join(paths["disk"], "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	of := v1.VolumeMount{Name: "disk", MountPath: `C:\f`, SubPath: "f"}
	if _, err := r.Mount(p, of); err == nil || !strings.Contains(err.Error(), "can only mount directories: set readOnly: true") {
		t.Errorf("a file to be written: %v", err)
	}
	of.ReadOnly = true
	if got, err := r.Mount(p, of); err != nil || !got.Copy {
		t.Errorf("a file to be read: %+v, %v", got, err)
	}
	of.MountPath = `D:\f`
	if _, err := r.Mount(p, of); err == nil || !strings.Contains(err.Error(), "only to drive C of a container") {
		t.Errorf("on another drive: %v", err)
	}
	large := filepath.Join(paths["disk"], "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, 64<<20+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Mount(p, v1.VolumeMount{Name: "disk", MountPath: `C:\l`, SubPath: "large", ReadOnly: true}); err == nil || !strings.Contains(err.Error(), "at most 67108864") {
		t.Errorf("a large file: %v", err)
	}
}

// TestLinksOutOfVolumes: what a container may put into its volume does not lead to files of the host.
func TestLinksOutOfVolumes(t *testing.T) {
	r := volumetest.New(t, volumetest.Windows())
	p := volumetest.Pod(volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	paths := r.MustPrepare(p)
	secret := filepath.Join(t.TempDir(), "kubelet.conf")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(paths["disk"], "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(paths["disk"], "link")); err != nil {
		t.Skip("this system makes no symbolic links") // Wine says that it has made one
	}
	if got, err := r.Mount(p, v1.VolumeMount{Name: "disk", MountPath: "/f", SubPath: "link", ReadOnly: true}); err == nil {
		t.Errorf("%+v", got)
	}
}

func TestTargetsTogether(t *testing.T) {
	r := volumetest.New(t, volumetest.Windows())
	r.API.ConfigMaps["conf"] = map[string]string{"a": "1"}
	p := volumetest.Pod(volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), volumetest.ConfigMapVol("conf", "conf"))
	r.MustPrepare(p)
	for _, c := range []struct {
		a, b v1.VolumeMount
		want string
	}{
		{v1.VolumeMount{Name: "disk", MountPath: "C:/Data"}, v1.VolumeMount{Name: "conf", MountPath: `c:\data\`}, "are the same on Windows"},
		{v1.VolumeMount{Name: "disk", MountPath: "/data"}, v1.VolumeMount{Name: "conf", MountPath: `C:\DATA\a`, SubPath: "a"}, "Windows cannot have it there"},
		{v1.VolumeMount{Name: "disk", MountPath: "/data"}, v1.VolumeMount{Name: "conf", MountPath: "/database"}, ""},
		{v1.VolumeMount{Name: "disk", MountPath: "/data"}, v1.VolumeMount{Name: "conf", MountPath: "/data/conf"}, ""},
	} {
		_, err := r.Mounts(t.Context(), p, &v1.Container{Name: "c", VolumeMounts: []v1.VolumeMount{c.a, c.b}}, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s and %s: %v; want %q", c.a.MountPath, c.b.MountPath, err, c.want)
		}
	}
}

func TestPipes(t *testing.T) {
	p := volumetest.Pod(volumetest.HostVol("pipe", `\\.\pipe\docker_engine`, ""))
	for _, c := range []struct {
		build int
		mount v1.VolumeMount
		want  string
	}{
		{17763, v1.VolumeMount{MountPath: "//./pipe/docker_engine"}, ""},
		{14393, v1.VolumeMount{MountPath: `\\.\pipe\x`}, "from Windows Server version 1709"},
		{17763, v1.VolumeMount{MountPath: `C:\pipe`}, "mountPath must be one as well"},
		{17763, v1.VolumeMount{MountPath: `\\.\pipe\x`, ReadOnly: true}, "leave readOnly out"},
		{17763, v1.VolumeMount{MountPath: `\\.\pipe\x`, SubPath: "y"}, "cannot have a subPath"},
	} {
		r := volumetest.New(t, pod.Platform{OS: "windows", Build: c.build})
		r.MustPrepare(p)
		c.mount.Name = "pipe"
		got, err := r.Mount(p, c.mount)
		if c.want == "" && (err != nil || got.HostPath != `\\.\pipe\docker_engine` || got.ContainerPath != `\\.\pipe\docker_engine`) ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v on %d: %+v, %v; want %q", c.mount, c.build, got, err, c.want)
		}
	}
}

// TestLongPaths: the path of a file may be longer than 260 characters.
func TestLongPaths(t *testing.T) {
	r := volumetest.New(t, volumetest.Windows())
	name := strings.Repeat("k", 200)
	r.API.Secrets["s"] = map[string][]byte{name: []byte("v")}
	items := []v1.KeyToPath{{Key: name, Path: strings.Repeat("directory/", 30) + name}}
	p := volumetest.Pod(volumetest.Vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Items: items}}))
	file := filepath.Join(r.MustPrepare(p)["s"], filepath.FromSlash(items[0].Path))
	if data, err := os.ReadFile(file); err != nil || string(data) != "v" {
		t.Errorf("%d characters: %q, %v", len(file), data, err)
	}
	if err := r.Clean(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
}
