package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// TestCopiedFiles: a file by subPath is one that the agent keeps, of which the container gets a copy.
func TestCopiedFiles(t *testing.T) {
	r := newRig(t, windows)
	lists := map[string]string{}
	r.setAccess = func(path, sddl string) error { lists[path] = sddl; return nil }
	r.api.configMaps["conf"] = map[string]string{"a": "1"}
	p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), configMapVol("conf", "conf"))
	paths := r.prepare(p)
	conf := v1.VolumeMount{Name: "conf", MountPath: `C:\app\app.conf`, SubPath: "a"}
	for _, want := range []string{"1", "2"} { // a later start has what the volume then holds
		r.api.configMaps["conf"]["a"] = want
		r.prepare(p)
		got, err := mounts(r, p, conf)
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
	if _, err := mounts(r, p, of); err == nil || !strings.Contains(err.Error(), "can only mount directories: set readOnly: true") {
		t.Errorf("a file to be written: %v", err)
	}
	of.ReadOnly = true
	if got, err := mounts(r, p, of); err != nil || !got.Copy {
		t.Errorf("a file to be read: %+v, %v", got, err)
	}
	of.MountPath = `D:\f`
	if _, err := mounts(r, p, of); err == nil || !strings.Contains(err.Error(), "drive C of a container alone") {
		t.Errorf("on another drive: %v", err)
	}
	large := filepath.Join(paths["disk"], "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, maxStaged+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := mounts(r, p, v1.VolumeMount{Name: "disk", MountPath: `C:\l`, SubPath: "large", ReadOnly: true}); err == nil || !strings.Contains(err.Error(), "at most 67108864") {
		t.Errorf("a large file: %v", err)
	}
}

// TestLinksOutOfVolumes: what a container may put into its volume does not lead to files of the host.
func TestLinksOutOfVolumes(t *testing.T) {
	r := newRig(t, windows)
	p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	paths := r.prepare(p)
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
	if got, err := mounts(r, p, v1.VolumeMount{Name: "disk", MountPath: "/f", SubPath: "link", ReadOnly: true}); err == nil {
		t.Errorf("%+v", got)
	}
}

func TestTargetsTogether(t *testing.T) {
	r := newRig(t, windows)
	r.api.configMaps["conf"] = map[string]string{"a": "1"}
	p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), configMapVol("conf", "conf"))
	r.prepare(p)
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
	p := makePod(hostVol("pipe", `\\.\pipe\docker_engine`, ""))
	for _, c := range []struct {
		build int
		mount v1.VolumeMount
		want  string
	}{
		{17763, v1.VolumeMount{MountPath: "//./pipe/docker_engine"}, ""},
		{14393, v1.VolumeMount{MountPath: `\\.\pipe\x`}, "from Windows Server version 1709"},
		{17763, v1.VolumeMount{MountPath: `C:\pipe`}, "mountPath must be one as well"},
		{17763, v1.VolumeMount{MountPath: `\\.\pipe\x`, ReadOnly: true}, "leave readOnly out"},
		{17763, v1.VolumeMount{MountPath: `\\.\pipe\x`, SubPath: "y"}, "no subPath"},
	} {
		r := newRig(t, pod.Platform{OS: "windows", Build: c.build})
		r.prepare(p)
		c.mount.Name = "pipe"
		got, err := mounts(r, p, c.mount)
		if c.want == "" && (err != nil || got.HostPath != `\\.\pipe\docker_engine` || got.ContainerPath != `\\.\pipe\docker_engine`) ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v on %d: %+v, %v; want %q", c.mount, c.build, got, err, c.want)
		}
	}
}

// TestAccess: whoever is not of the pod, SYSTEM or Administrators reads no Secret.
func TestAccess(t *testing.T) {
	name := func(s string) *v1.WindowsSecurityContextOptions {
		return &v1.WindowsSecurityContextOptions{RunAsUserName: &s}
	}
	for user, want := range map[string]string{
		"": "", "ContainerUser": "", `NT AUTHORITY\SYSTEM`: "", `NT AUTHORITY\Network Service`: "(A;OICI;0x1200a9;;;NS)", "app": "(A;OICI;0x1200a9;;;BU)",
	} {
		r := newRig(t, windows)
		lists := map[string]string{}
		r.setAccess = func(path, sddl string) error { lists[path] = sddl; return nil }
		r.api.secrets["s"] = map[string][]byte{"k": []byte("v")}
		p := makePod(vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}))
		if user != "" {
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{WindowsOptions: name(user)}
		}
		const all = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;0x1200a9;;;S-1-5-93-2-1)(A;OICI;0x1200a9;;;S-1-5-93-2-2)"
		if got := lists[r.prepare(p)["s"]]; got != all+want {
			t.Errorf("%q: %s", user, got)
		}
		r.setAccess = func(string, string) error { return errors.New("no") }
		if _, err := r.Prepare(t.Context(), p); err == nil {
			t.Error("a Secret was left to everybody")
		}
		dir, err := r.MakeDir(p.UID, "containers/c/termination-0")
		if err == nil {
			t.Errorf("%s was left as it was", dir)
		}
	}
}

// TestLongPaths: the path of a file may be longer than 260 characters.
func TestLongPaths(t *testing.T) {
	r := newRig(t, windows)
	name := strings.Repeat("k", 200)
	r.api.secrets["s"] = map[string][]byte{name: []byte("v")}
	items := []v1.KeyToPath{{Key: name, Path: strings.Repeat("directory/", 30) + name}}
	p := makePod(vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Items: items}}))
	file := filepath.Join(r.prepare(p)["s"], filepath.FromSlash(items[0].Path))
	if data, err := os.ReadFile(file); err != nil || string(data) != "v" {
		t.Errorf("%d characters: %q, %v", len(file), data, err)
	}
	if err := r.Clean(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
}
