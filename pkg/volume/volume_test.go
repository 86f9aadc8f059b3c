package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

func TestContent(t *testing.T) {
	for _, platform := range []pod.Platform{linux, windows} {
		t.Run(platform.OS, func(t *testing.T) {
			r := newRig(t, platform)
			r.api.configMaps["conf"] = map[string]string{"a.conf": "one", "b.conf": "two"}
			r.api.secrets["login"] = map[string][]byte{"password": []byte("s3cret"), "user": []byte("me")}
			p := makePod(configMapVol("all", "conf"),
				vol("some", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "login", DefaultMode: ptr(int32(0o400)), Items: []v1.KeyToPath{
					{Key: "password", Path: "deep/er/pw"}, {Key: "user", Path: "user", Mode: ptr(int32(0o440))}}}}))
			paths := r.prepare(p)
			if want := filepath.Join(r.cfg.Root, "pods/uid-1/volumes/kubernetes.io~secret/some"); paths["some"] != want {
				t.Errorf("path %s, want %s", paths["some"], want)
			}
			all, some := "a.conf 644 one\nb.conf 644 two\n", "deep/er/pw 400 s3cret\nuser 440 me\n"
			if platform.OS == "windows" {
				some = "deep/er/pw 644 s3cret\nuser 644 me\n"
			}
			if got := tree(t, paths["all"]); got != all {
				t.Errorf("configMap:\n%s", got)
			}
			if got := tree(t, paths["some"]); got != some {
				t.Errorf("secret:\n%s", got)
			}
			before := inodes(t, paths["all"])
			r.clock.SetTime(r.clock.Now().Add(time.Hour))
			r.prepare(p)
			if !sameInodes(before, inodes(t, paths["all"])) {
				t.Error("unchanged content was written again")
			}
			r.api.configMaps["conf"] = map[string]string{"b.conf": "2", "c.conf": "3"}
			r.prepare(p)
			if got := tree(t, paths["all"]); got != "b.conf 644 2\nc.conf 644 3\n" {
				t.Errorf("after the change:\n%s", got)
			}
			entries, err := os.ReadDir(paths["all"])
			if err != nil || len(entries) != map[string]int{"linux": 4, "windows": 2}[platform.OS] { // links, ..data, its directory
				t.Errorf("left behind: %v, %v", entries, err)
			}
			mounted, _ := r.kernel.isMount(paths["some"])
			if conf, _ := r.kernel.isMount(paths["all"]); conf || mounted != (platform.OS == "linux") {
				t.Errorf("in memory: %q", r.kernel.points)
			}
			fi, err := os.Stat(filepath.Join(r.cfg.Root, "pods"))
			if err != nil || filepath.Separator == '/' && fi.Mode().Perm() != 0o750 {
				t.Errorf("root has mode %v, %v", fi.Mode(), err)
			}
			// A running pod goes on with what it has.
			r.api.down = errors.New("connection refused")
			r.prepare(p)
			if got := tree(t, paths["all"]); got != "b.conf 644 2\nc.conf 644 3\n" {
				t.Errorf("after an outage:\n%s", got)
			}
			p2 := makePod(configMapVol("all", "conf"))
			p2.UID = "uid-2"
			if _, err := r.Prepare(t.Context(), p2); err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "all" : cannot read configmap "conf": connection refused`) {
				t.Errorf("new pod: %v", err)
			}
		})
	}
}

// Half-made states that a killed agent leaves are repaired.
func TestContentAfterCrash(t *testing.T) {
	r := newRig(t, linux)
	r.api.configMaps["conf"] = map[string]string{"a": "1"}
	p := makePod(configMapVol("v", "conf"))
	dir := r.prepare(p)["v"]
	for _, damage := range []func() error{
		func() error { return os.MkdirAll(filepath.Join(dir, "..2020_01_01_00_00_00.1/x"), 0o755) },
		func() error { return os.Symlink("nowhere", filepath.Join(dir, "..data_tmp")) },
		func() error { return os.Remove(filepath.Join(dir, "a")) },
		func() error { return os.Remove(filepath.Join(dir, "..data")) },
		func() error {
			return errors.Join(os.Remove(filepath.Join(dir, "..data")), os.Symlink("../../../../../etc", filepath.Join(dir, "..data")))
		},
		func() error { return os.WriteFile(filepath.Join(dir, "..data", "a"), []byte("half"), 0o644) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		r.prepare(p)
		entries, err := os.ReadDir(dir)
		if got := tree(t, dir); got != "a 644 1\n" || err != nil || len(entries) != 3 {
			t.Errorf("not repaired: %s, %v, %v", got, entries, err)
		}
	}
}

func TestOptionalAndMissing(t *testing.T) {
	r := newRig(t, linux)
	r.api.configMaps["conf"] = map[string]string{"a": "1"}
	r.api.secrets["s"] = map[string][]byte{"k": []byte("v")}
	yes := ptr(true)
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
		{"nfs", v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}, "volume kind nfs is not supported by this node agent; use emptyDir"},
		{"none", v1.VolumeSource{}, "volume kind none is not supported"},
		{"trust bundle", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{}}}}}, "clusterTrustBundle has neither name nor signerName"},
		{"huge pages", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"}}, `emptyDir.medium "HugePages-2Mi" is not supported`},
		{"relative hostPath", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "etc"}}, `hostPath.path "etc" is relative`},
		{"file and directory", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Items: []v1.KeyToPath{{Key: "k", Path: "x"}, {Key: "k", Path: "x/y"}}}}, `cannot be a file and the directory`},
	} {
		_, err := r.Prepare(t.Context(), makePod(vol("v", c.v)))
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
		{linux, "a/b", true}, {linux, "../x", false}, {linux, "a/../../x", false}, {linux, "/etc/passwd", false}, {linux, "..data", false}, {linux, "..", false},
		{linux, "", false}, {linux, "a//b", false}, {linux, "./a", false}, {linux, "a\x00b", false}, {linux, "con", true}, {linux, `c:\x`, true}, {linux, strings.Repeat("x", 256), false},
		{windows, "a/b", true}, {windows, `..\x`, false}, {windows, `C:\x`, false}, {windows, "c:x", false}, {windows, "a:stream", false}, {windows, "NUL", false},
		{windows, "nul.txt", false}, {windows, "dir/com1", false}, {windows, "COM1 .x", false}, {windows, "lpt¹", false}, {windows, "conin$", false}, {windows, "nulls", true},
		{windows, "trailing.", false}, {windows, "trailing ", false}, {windows, `\\server\share`, false}, {windows, "a?b", false}, {windows, "a\nb", false},
	} {
		r := newRig(t, c.platform)
		r.api.secrets["s"] = map[string][]byte{"k": []byte("v")}
		_, err := r.Prepare(t.Context(), makePod(vol("v", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Items: []v1.KeyToPath{{Key: "k", Path: c.path}}}})))
		if (err == nil) != c.ok {
			t.Errorf("%s items path %q: %v", c.platform.OS, c.path, err)
		}
	}
	r := newRig(t, windows)
	r.api.configMaps["c"] = map[string]string{"Key": "1", "key": "2"}
	if _, err := r.Prepare(t.Context(), makePod(configMapVol("v", "c"))); err == nil || !strings.Contains(err.Error(), "differ only in case") {
		t.Errorf("keys that differ in case: %v", err)
	}
	if _, err := r.Prepare(t.Context(), makePod(vol("aux", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))); err == nil || !strings.Contains(err.Error(), "name of a device") {
		t.Errorf("volume aux: %v", err)
	}
	for _, uid := range []string{"", ".", "..", "../../etc", "a/b"} {
		p := makePod()
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

func TestToken(t *testing.T) {
	r := newRig(t, linux)
	p := makePod(vol("v", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: ptr(int32(0o644)), Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr(int64(1000))}},
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "vault", Audience: "vault"}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
	}}}))
	dir := r.prepare(p)["v"]
	first := "namespace 644 shop\ntoken 644 shop/default [] for uid-1 #1\nvault 644 shop/default [vault] for uid-1 #2\n"
	if got := tree(t, dir); got != first {
		t.Errorf("first:\n%s", got)
	}
	if due := r.Due(p.UID).Sub(r.clock.Now()); due != 800*time.Second {
		t.Errorf("due in %v", due)
	}
	r.clock.SetTime(r.clock.Now().Add(799 * time.Second))
	r.prepare(p)
	if got := tree(t, dir); got != first || r.api.tokens != 2 {
		t.Errorf("before its time:\n%s", got)
	}
	r.clock.SetTime(r.clock.Now().Add(time.Second))
	r.api.down = errors.New("connection refused")
	r.prepare(p)
	if got := tree(t, dir); got != first {
		t.Errorf("API away:\n%s", got)
	}
	r.api.down = nil
	r.prepare(p)
	if got := tree(t, dir); got != strings.Replace(first, "#1", "#3", 1) {
		t.Errorf("renewed:\n%s", got)
	}
	if r.Due("unknown") != (time.Time{}) {
		t.Error("an unknown pod is due")
	}
	// One user for all containers: the token is only theirs.
	if os.Geteuid() == 0 {
		p.UID, p.Spec.SecurityContext = "uid-3", &v1.PodSecurityContext{RunAsUser: ptr(int64(1234))}
		if got := tree(t, r.prepare(p)["v"]); !strings.Contains(got, "token 600 ") || !strings.Contains(got, "namespace 644 ") {
			t.Errorf("one user:\n%s", got)
		}
		p.UID, p.Spec.SecurityContext = "uid-4", &v1.PodSecurityContext{FSGroup: ptr(int64(555))}
		if got := tree(t, r.prepare(p)["v"]); !strings.Contains(got, "token 640 ") || !strings.Contains(got, "namespace 644 ") {
			t.Errorf("group:\n%s", got)
		}
	}
}

func TestDownward(t *testing.T) {
	r := newRig(t, linux)
	r.api.node = &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3"), v1.ResourceMemory: resource.MustParse("4Gi")}}}
	p := makePod()
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1250m")}, Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("33Mi")}}
	p.Annotations = map[string]string{"example.com/x": "line1\nline2"}
	for in, want := range map[string]string{
		"metadata.name": "web", "metadata.uid": "uid-1", "metadata.labels": "a=\"quo\\\"te\"\napp=\"web\"", "metadata.labels['app']": "web", "metadata.labels['none']": "",
		"metadata.annotations['example.com/x']": "line1\nline2", "metadata.annotations": `example.com/x="line1\nline2"`,
		"limits.cpu": "2", "limits.cpu/1m": "1250", "limits.memory": "4294967296", "limits.memory/1Mi": "4096", "requests.memory/1Mi": "33", "requests.memory/1Gi": "1", "requests.cpu": "0",
		"status.podIP": "!fieldPath", "limits.gpu": "!resource", "max.cpu": "!resource",
	} {
		item := v1.DownwardAPIVolumeFile{Path: "f"}
		if strings.HasPrefix(in, "metadata") || strings.HasPrefix(in, "status") {
			item.FieldRef = &v1.ObjectFieldSelector{FieldPath: in}
		} else {
			name, divisor, _ := strings.Cut(in, "/")
			item.ResourceFieldRef = &v1.ResourceFieldSelector{ContainerName: "c", Resource: name}
			if divisor != "" {
				item.ResourceFieldRef.Divisor = resource.MustParse(divisor)
			}
		}
		got, err := r.downward(p, []v1.DownwardAPIVolumeFile{item}, nil)
		if part, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v", in, err)
			}
			continue
		}
		if err != nil || string(got["f"].data) != want {
			t.Errorf("%s: %q, %v, want %q", in, got["f"].data, err, want)
		}
	}
}

func TestWriteFile(t *testing.T) {
	r := newRig(t, linux)
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

// TestTokenClock: a token is renewed when four fifths of its life have gone by, or when the clock says so; the API server's clock does not
// matter.
func TestTokenClock(t *testing.T) {
	now := time.Now()
	renew := now.Add(48 * time.Minute)
	for _, c := range []struct {
		name string
		now  time.Time
		want bool
	}{
		{"nothing", now, false},
		{"time goes by", now.Add(48 * time.Minute), true},
		{"the machine slept, or the clock was set forward", now.Round(0).Add(24 * time.Hour), true},
		{"the clock was set back", now.Round(0).Add(-24 * time.Hour), false},
	} {
		if got := passed(c.now, renew); got != c.want {
			t.Errorf("%s: renewed %t, want %t", c.name, got, c.want)
		}
	}
	for _, ahead := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
		r := newRig(t, linux)
		r.api.ahead = ahead
		got, err := r.requestToken(t.Context(), makePod(), tokenKey{account: "default", seconds: 3600})
		if err != nil {
			t.Fatal(err)
		}
		begin := r.clock.Now()
		if got.renew != begin.Add(48*time.Minute) || got.expires != begin.Add(time.Hour) {
			t.Errorf("API server ahead by %s: renewed after %s, expires after %s", ahead, got.renew.Sub(begin), got.expires.Sub(begin))
		}
	}
}

// TestPrepared: whoever wants to know is told of each volume by upstream's name for its kind, also of one that cannot be made ready.
func TestPrepared(t *testing.T) {
	r := newRig(t, linux)
	var told []string
	r.told = func(plugin string, took time.Duration, err error) {
		told = append(told, strings.TrimSuffix(plugin+" "+took.String()+" "+map[bool]string{true: "failed"}[err != nil], " "))
	}
	r.api.configMaps["conf"] = map[string]string{"a": "1"}
	p := makePod(configMapVol("conf", "conf"), configMapVol("none", "none"), vol("tmp", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		vol("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}), vol("nfs", v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}))
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
	r := newRig(t, linux)
	p := makePod()
	claim := vol("data", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})
	s := r.lock(p.UID)
	s.Unlock()
	for want, b := range map[string]*backing{
		"": nil, "kubernetes.io/local-volume": {path: "/mnt"}, "kubernetes.io/host-path": {path: "/mnt", hostPath: &v1.HostPathVolumeSource{}},
	} {
		delete(s.claims, "data")
		if b != nil {
			s.claims["data"] = *b
		}
		if got := r.Plugin(p, &claim); got != want {
			t.Errorf("claim with %+v: %q, want %q", b, got, want)
		}
	}
	for want, source := range map[string]v1.VolumeSource{
		"kubernetes.io/secret": {Secret: &v1.SecretVolumeSource{}}, "kubernetes.io/projected": {Projected: &v1.ProjectedVolumeSource{}},
		"kubernetes.io/downward-api": {DownwardAPI: &v1.DownwardAPIVolumeSource{}}, "kubernetes.io/image": {Image: &v1.ImageVolumeSource{}}, "": {NFS: &v1.NFSVolumeSource{}},
	} {
		v := vol("v", source)
		if got := r.Plugin(p, &v); got != want {
			t.Errorf("%+v: %q, want %q", source, got, want)
		}
	}
}
