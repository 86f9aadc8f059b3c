package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// TestPlaces: the pod's own volumes and claims are measured, not what is the host's or many pods'; memory and claims have a separate size.
func TestPlaces(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	local := t.TempDir()
	r.Bind("data", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: local}})
	p := volumetest.Pod(volumetest.Vol("e", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), volumetest.ClaimVol(false), volumetest.HostVol("h", t.TempDir(), ""), volumetest.Vol("image", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "i:1"}}),
		volumetest.Vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}))
	paths := r.MustPrepare(p)
	got, err := r.Places(p)
	want := []disk.Place{{Volume: "e", Path: paths["e"], EmptyDir: true}, {Volume: p.Spec.Volumes[1].Name, Claim: "data", Path: local, Own: true},
		{Volume: "mem", Path: paths["mem"], EmptyDir: true, Own: true, Memory: true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if dir := r.Dir(p.UID); filepath.Join(dir, "volumes", "kubernetes.io~empty-dir", "e") != paths["e"] || r.Dir("../x") != "" {
		t.Errorf("directory %q", dir)
	}
}

// TestKeepFiles: what is not wanted any more goes, whatever a container has made of it; links are not followed.
func TestKeepFiles(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	const uid = "u"
	for _, name := range []string{"containers/web/termination-0", "containers/web/termination-2", "containers/web/termination-3", "containers/other/termination-0", "etc-hosts"} {
		if _, err := r.WriteFile(uid, name, []byte(name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	dir, err := r.MakeDir(uid, "containers/web/termination-1")
	if err = errors.Join(err, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.Symlink(outside, filepath.Join(dir, "l"))); err != nil {
		t.Fatal(err)
	}
	if err := r.KeepFiles(uid, "containers/web", "termination-3", "termination-2"); err != nil {
		t.Error(err)
	}
	if got := volumetest.Tree(t, r.Dir(uid)); got != "containers/other/termination-0 666 containers/other/termination-0\ncontainers/web/termination-2 666 containers/web/termination-2\n"+
		"containers/web/termination-3 666 containers/web/termination-3\netc-hosts 666 etc-hosts\n" || !paths.Exists(outside) {
		t.Errorf("left:\n%s", got)
	}
	if err := r.KeepFiles(uid, "containers/none"); err != nil {
		t.Errorf("no such directory: %v", err)
	}
	if err := r.KeepFiles(uid, "../.."); err == nil {
		t.Error("a directory outside was cleared")
	}
}

func TestWriteFile(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	path, err := r.WriteFile("uid-1", "containers/web/log", nil, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("from the container"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.WriteFile("uid-1", "containers/web/log", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "from the container" {
		t.Errorf("nil data overwrote: %q", b)
	}
	before, _ := os.Stat(path)
	for _, data := range []string{"a longer text than before, much longer", "short", ""} {
		if _, err := r.WriteFile("uid-1", "containers/web/log", []byte(data), 0o666); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(path)
		if b, _ := os.ReadFile(path); err != nil || string(b) != data || !os.SameFile(before, after) {
			t.Errorf("%q: %q, same file: %v", data, b, os.SameFile(before, after))
		}
	}
	if filepath.Separator == '/' && before.Mode().Perm() != 0o666 {
		t.Errorf("mode %v", before.Mode())
	}
	if err := os.MkdirAll(filepath.Join(filepath.Dir(path), "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := r.WriteFile("uid-1", "containers/web/dir", []byte("x"), 0o644); err == nil {
		t.Error("wrote to a directory")
	}
}

// TestPrepared: each volume is reported by upstream's name for its kind, also one that cannot be made ready.
func TestPrepared(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	var told []string
	r.Prepared = func(plugin string, took time.Duration, err error) {
		told = append(told, strings.TrimSuffix(plugin+" "+took.String()+" "+map[bool]string{true: "failed"}[err != nil], " "))
	}
	r.API.ConfigMaps["conf"] = map[string]string{"a": "1"}
	p := volumetest.Pod(volumetest.ConfigMapVol("conf", "conf"), volumetest.ConfigMapVol("none", "none"), volumetest.Vol("tmp", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		volumetest.Vol("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}), volumetest.Vol("iscsi", v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}))
	if _, err := r.Prepare(t.Context(), p); err == nil {
		t.Error("a ConfigMap that is not there is no error")
	}
	const want = "kubernetes.io/configmap 0s, kubernetes.io/configmap 0s failed, kubernetes.io/empty-dir 0s, kubernetes.io/host-path 0s"
	if got := strings.Join(told, ", "); got != want {
		t.Errorf("told\n%s, want\n%s", got, want)
	}
}

// TestPlugin: what a claim is follows from what is behind it.
func TestPlugin(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	p := volumetest.Pod()
	claim := volumetest.ClaimVol(false)
	p.Spec.Volumes = []v1.Volume{claim}
	if got := r.Plugin(p, &claim); got != "" {
		t.Errorf("a claim that was not prepared: %q", got)
	}
	for want, source := range map[string]v1.PersistentVolumeSource{
		"kubernetes.io/local-volume": {Local: &v1.LocalVolumeSource{Path: t.TempDir()}}, "kubernetes.io/host-path": {HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}},
	} {
		r.Bind("data", source)
		r.MustPrepare(p)
		if got := r.Plugin(p, &claim); got != want {
			t.Errorf("%+v: %q, want %q", source, got, want)
		}
		if err := r.Clean(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
	for want, source := range map[string]v1.VolumeSource{
		"kubernetes.io/secret": {Secret: &v1.SecretVolumeSource{}}, "kubernetes.io/projected": {Projected: &v1.ProjectedVolumeSource{}},
		"kubernetes.io/downward-api": {DownwardAPI: &v1.DownwardAPIVolumeSource{}}, "kubernetes.io/image": {Image: &v1.ImageVolumeSource{}}, "kubernetes.io/nfs": {NFS: &v1.NFSVolumeSource{}}, "": {ISCSI: &v1.ISCSIVolumeSource{}},
	} {
		v := volumetest.Vol("v", source)
		if got := r.Plugin(p, &v); got != want {
			t.Errorf("%+v: %q, want %q", source, got, want)
		}
	}
}

// TestAccess: only the pod, SYSTEM and Administrators read a Secret.
func TestAccess(t *testing.T) {
	name := func(s string) *v1.WindowsSecurityContextOptions {
		return &v1.WindowsSecurityContextOptions{RunAsUserName: &s}
	}
	for user, want := range map[string]string{
		"": "", "ContainerUser": "", `NT AUTHORITY\SYSTEM`: "", `NT AUTHORITY\Network Service`: "(A;OICI;0x1200a9;;;NS)", "app": "(A;OICI;0x1200a9;;;BU)",
	} {
		r := volumetest.New(t, volumetest.Windows())
		lists := map[string]string{}
		r.SetAccess = func(path, sddl string) error { lists[path] = sddl; return nil }
		r.API.Secrets["s"] = map[string][]byte{"k": []byte("v")}
		p := volumetest.Pod(volumetest.Vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}))
		if user != "" {
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{WindowsOptions: name(user)}
		}
		const all = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;0x1200a9;;;S-1-5-93-2-1)(A;OICI;0x1200a9;;;S-1-5-93-2-2)"
		if got := lists[r.MustPrepare(p)["s"]]; got != all+want {
			t.Errorf("%q: %s", user, got)
		}
		r.SetAccess = func(string, string) error { return errors.New("no") }
		if _, err := r.Prepare(t.Context(), p); err == nil {
			t.Error("a Secret was left to everybody")
		}
		dir, err := r.MakeDir(p.UID, "containers/c/termination-0")
		if err == nil {
			t.Errorf("%s was left as it was", dir)
		}
	}
}
