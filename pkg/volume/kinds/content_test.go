package kinds_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func TestContent(t *testing.T) {
	for _, platform := range []pod.Platform{volumetest.Linux(), volumetest.Windows()} {
		t.Run(platform.OS, func(t *testing.T) {
			r := volumetest.New(t, platform)
			r.API.ConfigMaps["conf"] = map[string]string{"a.conf": "one", "b.conf": "two"}
			r.API.Secrets["login"] = map[string][]byte{"password": []byte("s3cret"), "user": []byte("me")}
			p := volumetest.Pod(volumetest.ConfigMapVol("all", "conf"),
				volumetest.Vol("some", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "login", DefaultMode: new(int32(0o400)), Items: []v1.KeyToPath{
					{Key: "password", Path: "deep/er/pw"}, {Key: "user", Path: "user", Mode: new(int32(0o440))}}}}))
			paths := r.MustPrepare(p)
			if want := filepath.Join(r.Host.Root, "pods/uid-1/volumes/kubernetes.io~secret/some"); paths["some"] != want {
				t.Errorf("path %s, want %s", paths["some"], want)
			}
			all, some := "a.conf 644 one\nb.conf 644 two\n", "deep/er/pw 400 s3cret\nuser 440 me\n"
			if platform.OS == "windows" {
				some = "deep/er/pw 644 s3cret\nuser 644 me\n"
			}
			if got := volumetest.Tree(t, paths["all"]); got != all {
				t.Errorf("configMap:\n%s", got)
			}
			if got := volumetest.Tree(t, paths["some"]); got != some {
				t.Errorf("secret:\n%s", got)
			}
			before := inodes(t, paths["all"])
			r.Clock.SetTime(r.Clock.Now().Add(time.Hour))
			r.MustPrepare(p)
			if !sameInodes(before, inodes(t, paths["all"])) {
				t.Error("unchanged content was written again")
			}
			r.API.ConfigMaps["conf"] = map[string]string{"b.conf": "2", "c.conf": "3"}
			r.MustPrepare(p)
			if got := volumetest.Tree(t, paths["all"]); got != "b.conf 644 2\nc.conf 644 3\n" {
				t.Errorf("after the change:\n%s", got)
			}
			entries, err := os.ReadDir(paths["all"])
			if err != nil || len(entries) != map[string]int{"linux": 4, "windows": 2}[platform.OS] { // links, ..data, its directory
				t.Errorf("left behind: %v, %v", entries, err)
			}
			mounted, _ := r.Kernel.IsMount(paths["some"])
			if conf, _ := r.Kernel.IsMount(paths["all"]); conf || mounted != (platform.OS == "linux") {
				t.Errorf("in memory: %q", r.Kernel.Points)
			}
			fi, err := os.Stat(filepath.Join(r.Host.Root, "pods"))
			if err != nil || filepath.Separator == '/' && fi.Mode().Perm() != 0o750 {
				t.Errorf("root has mode %v, %v", fi.Mode(), err)
			}
			// A running pod goes on with what it has.
			r.API.Down = errors.New("connection refused")
			r.MustPrepare(p)
			if got := volumetest.Tree(t, paths["all"]); got != "b.conf 644 2\nc.conf 644 3\n" {
				t.Errorf("after an outage:\n%s", got)
			}
			p2 := volumetest.Pod(volumetest.ConfigMapVol("all", "conf"))
			p2.UID = "uid-2"
			if _, err := r.Prepare(t.Context(), p2); err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "all" : cannot read configmap "conf": connection refused`) {
				t.Errorf("new pod: %v", err)
			}
		})
	}
}

func TestOptionalAndMissing(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	r.API.ConfigMaps["conf"] = map[string]string{"a": "1"}
	r.API.Secrets["s"] = map[string][]byte{"k": []byte("v")}
	yes := new(true)
	for _, c := range []struct {
		name string
		v    v1.VolumeSource
		want string // part of the error; "": none
	}{
		{"optional configMap", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "no"}, Optional: yes}}, ""},
		{"optional secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "no", Optional: yes}}, ""},
		{"optional key", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Optional: yes, Items: []v1.KeyToPath{{Key: "no", Path: "p"}}}}, ""},
		{"missing secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "no"}}, `secret "no" not found`},
		{"missing key", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Items: []v1.KeyToPath{{Key: "no", Path: "p"}}}}, "references non-existent secret key: no"},
		{"missing config key", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}, Items: []v1.KeyToPath{{Key: "no", Path: "p"}}}}, "references non-existent config key: no"},
		{"claim", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}, `error processing PVC shop/data: failed to fetch PVC from API server: persistentvolumeclaims "data" not found`},
		{"iscsi", v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}, "volume kind iscsi is not supported by this node agent; use hostPath, emptyDir"},
		{"rbd", v1.VolumeSource{RBD: &v1.RBDVolumeSource{}}, "volume kind rbd is not supported by this node agent; use a PersistentVolume of the CSI driver rbd.csi.ceph.com, on a Linux node"},
		{"cephfs", v1.VolumeSource{CephFS: &v1.CephFSVolumeSource{}}, "volume kind cephfs is not supported by this node agent; use a PersistentVolume of the CSI driver cephfs.csi.ceph.com"},
		{"none", v1.VolumeSource{}, "volume kind none is not supported"},
		{"trust bundle", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{}}}}}, "clusterTrustBundle has neither name nor signerName"},
		{"huge pages", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"}}, `emptyDir.medium "HugePages-2Mi" is not supported`},
		{"relative hostPath", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "etc"}}, `hostPath.path "etc" is relative`},
		{"file and directory", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Items: []v1.KeyToPath{{Key: "k", Path: "x"}, {Key: "k", Path: "x/y"}}}}, `cannot be a file and the directory`},
	} {
		_, err := r.Prepare(t.Context(), volumetest.Pod(volumetest.Vol("v", c.v)))
		if (c.want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "v" : `)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := r.Clean(t.Context(), "uid-1"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPathTricks(t *testing.T) {
	for _, c := range []struct {
		platform pod.Platform
		path     string
		ok       bool
	}{
		{volumetest.Linux(), "a/b", true}, {volumetest.Linux(), "../x", false}, {volumetest.Linux(), "a/../../x", false}, {volumetest.Linux(), "/etc/passwd", false}, {volumetest.Linux(), "..data", false}, {volumetest.Linux(), "..", false},
		{volumetest.Linux(), "", false}, {volumetest.Linux(), "a//b", false}, {volumetest.Linux(), "./a", false}, {volumetest.Linux(), "a\x00b", false}, {volumetest.Linux(), "con", true}, {volumetest.Linux(), `c:\x`, true}, {volumetest.Linux(), strings.Repeat("x", 256), false},
		{volumetest.Windows(), "a/b", true}, {volumetest.Windows(), `..\x`, false}, {volumetest.Windows(), `C:\x`, false}, {volumetest.Windows(), "c:x", false}, {volumetest.Windows(), "a:stream", false}, {volumetest.Windows(), "NUL", false},
		{volumetest.Windows(), "nul.txt", false}, {volumetest.Windows(), "dir/com1", false}, {volumetest.Windows(), "COM1 .x", false}, {volumetest.Windows(), "lpt¹", false}, {volumetest.Windows(), "conin$", false}, {volumetest.Windows(), "nulls", true},
		{volumetest.Windows(), "trailing.", false}, {volumetest.Windows(), "trailing ", false}, {volumetest.Windows(), `\\server\share`, false}, {volumetest.Windows(), "a?b", false}, {volumetest.Windows(), "a\nb", false},
	} {
		r := volumetest.New(t, c.platform)
		r.API.Secrets["s"] = map[string][]byte{"k": []byte("v")}
		_, err := r.Prepare(t.Context(), volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Items: []v1.KeyToPath{{Key: "k", Path: c.path}}}})))
		if (err == nil) != c.ok {
			t.Errorf("%s items path %q: %v", c.platform.OS, c.path, err)
		}
	}
	r := volumetest.New(t, volumetest.Windows())
	r.API.ConfigMaps["c"] = map[string]string{"Key": "1", "key": "2"}
	if _, err := r.Prepare(t.Context(), volumetest.Pod(volumetest.ConfigMapVol("v", "c"))); err == nil || !strings.Contains(err.Error(), "differ only in case") {
		t.Errorf("keys that differ in case: %v", err)
	}
	if _, err := r.Prepare(t.Context(), volumetest.Pod(volumetest.Vol("aux", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))); err == nil || !strings.Contains(err.Error(), "name of a device") {
		t.Errorf("volume aux: %v", err)
	}
	for _, uid := range []string{"", ".", "..", "../../etc", "a/b"} {
		p := volumetest.Pod()
		p.UID = types.UID(uid)
		if _, err := r.Prepare(t.Context(), p); err == nil {
			t.Errorf("uid %q was accepted by Prepare", uid)
		}
		if err := r.Clean(t.Context(), p.UID); err == nil {
			t.Errorf("uid %q was accepted by Clean", uid)
		}
		if _, err := r.WriteFile(p.UID, "x", nil, 0o644); err == nil {
			t.Errorf("uid %q was accepted by WriteFile", uid)
		}
	}
	if _, err := r.WriteFile("uid-1", "../../x", nil, 0o644); err == nil {
		t.Error("WriteFile left the pod's directory")
	}
}

// inodes maps every name below dir, links and hidden ones too, to its identity.
func inodes(t *testing.T, dir string) map[string]fs.FileInfo {
	t.Helper()
	out := map[string]fs.FileInfo{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		out[p], err = os.Lstat(p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sameInodes(a, b map[string]fs.FileInfo) bool {
	if len(a) != len(b) {
		return false
	}
	for p, fi := range a {
		if b[p] == nil || !os.SameFile(fi, b[p]) || !fi.ModTime().Equal(b[p].ModTime()) {
			return false
		}
	}
	return true
}

// TestSANOnWindows: disks of a SAN are refused on Windows with what there is instead, inline and behind a claim.
func TestSANOnWindows(t *testing.T) {
	r := volumetest.New(t, volumetest.Windows())
	const instead = "use a PersistentVolume of the storage's CSI driver, or a flexVolume driver; Linux nodes have kind "
	for want, source := range map[string]v1.VolumeSource{"iscsi": {ISCSI: &v1.ISCSIVolumeSource{}}, "fc": {FC: &v1.FCVolumeSource{}}} {
		if _, err := r.Prepare(t.Context(), volumetest.Pod(volumetest.Vol("v", source))); err == nil || !strings.Contains(err.Error(), "volume kind "+want+" is not supported by this node agent; "+instead+want) {
			t.Error(err)
		}
	}
	r.Bind("data", v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{}})
	if _, err := r.Prepare(t.Context(), volumetest.Pod(volumetest.ClaimVol(false))); err == nil || !strings.Contains(err.Error(), "PersistentVolume pv has kind fc, which is not supported by this node agent; use one of the storage's CSI driver") {
		t.Error(err)
	}
}
