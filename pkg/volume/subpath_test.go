package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/pod"
)

func hostVol(name, path string, kind v1.HostPathType) v1.Volume {
	return vol(name, v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}})
}

func TestHostPath(t *testing.T) {
	r := newRig(t, linux)
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	must(os.Symlink(dir, filepath.Join(dir, "link")))
	for _, c := range []struct {
		path string
		kind v1.HostPathType
		want string // message; "": accepted
	}{
		{dir, v1.HostPathUnset, ""}, {dir, v1.HostPathDirectory, ""}, {dir + "/link", v1.HostPathDirectory, ""}, {dir + "/file", v1.HostPathFile, ""},
		{dir + "/file", v1.HostPathFileOrCreate, ""}, {"/dev/null", v1.HostPathCharDev, ""}, {dir + "/new/deep", v1.HostPathDirectoryOrCreate, ""}, {dir + "/newfile", v1.HostPathFileOrCreate, ""},
		{dir + "/made", v1.HostPathUnset, ""},
		{dir + "/absent", v1.HostPathDirectory, "hostPath type check failed: " + dir + "/absent is not a directory"},
		{dir + "/file", v1.HostPathDirectory, "is not a directory"}, {dir + "/file", v1.HostPathDirectoryOrCreate, "is not a directory"},
		{dir, v1.HostPathFile, "is not a file"}, {dir + "/absent", v1.HostPathFile, "is not a file"}, {dir, v1.HostPathFileOrCreate, "is not a file"},
		{dir + "/file", v1.HostPathSocket, "is not a socket file"}, {dir + "/absent", v1.HostPathSocket, "is not a socket file"},
		{dir, v1.HostPathCharDev, "is not a character device"}, {"/dev/null", v1.HostPathBlockDev, "is not a block device"},
		{dir, "Socks", "Socks is an invalid volume type"},
	} {
		paths, err := r.Prepare(t.Context(), makePod(hostVol("v", c.path, c.kind)))
		if c.want == "" && (err != nil || paths["v"] != c.path) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s as %q: %v, %v", c.path, c.kind, paths, err)
		}
	}
	if fi, err := os.Stat(dir + "/new/deep"); err != nil || fi.Mode() != fs.ModeDir|0o755 {
		t.Errorf("%v, %v", fi, err)
	}
	must(r.Clean(t.Context(), "uid-1"))
	if _, err := os.Stat(dir + "/file"); err != nil {
		t.Error("Clean deleted what belongs to the host")
	}
}

func TestPathsAsValues(t *testing.T) {
	for in, want := range map[string]string{
		`C:\data`: `C:\data`, "C:/etc/foo": `C:\etc\foo`, "/var/log": `C:\var\log`, `\\.\pipe\docker_engine`: `\\.\pipe\docker_engine`, `\\server\share`: `\\server\share`,
		"data": "!", "C:data": "!", "": "!", "a\x00b": "!", `C:\pods\..\Windows`: "!", "/x/../../etc": "!", `C:\f:stream`: "!", `\\.\PhysicalDrive0`: "!", "C:/a/NUL": "!",
	} {
		got, err := hostPath(windows, in)
		if (want == "!") != (err != nil) || err == nil && got != want {
			t.Errorf("hostPath %q: %q, %v", in, got, err)
		}
	}
	for _, c := range []struct {
		p        pod.Platform
		in, want string
	}{
		{linux, "/data", "/data"}, {linux, "data", "/data"}, {linux, "/a:b", "!"}, {linux, "", "!"},
		{windows, "/data", `C:\data`}, {windows, "C:/etc/foo", `C:\etc\foo`}, {windows, "data", `C:\data`}, {windows, `\\.\pipe\x`, `\\.\pipe\x`},
		{windows, `C:\\etc\\foo`, `C:\etc\foo`}, {windows, "E:", "!"}, {windows, `E:\`, `E:\`}, {windows, "c:/", "!"}, {windows, `C:\a\..\b`, "!"}, {windows, `\\server\share`, "!"}, {windows, "/com1", "!"},
	} {
		got, err := containerPath(c.p, c.in)
		if (c.want == "!") != (err != nil) || err == nil && got != c.want {
			t.Errorf("containerPath %s %q: %q, %v", c.p.OS, c.in, got, err)
		}
	}
}

func TestEmptyDir(t *testing.T) {
	r := newRig(t, linux)
	p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: ptr(resource.MustParse("10Mi"))}}))
	paths := r.prepare(p)
	if fi, err := os.Stat(paths["disk"]); err != nil || fi.Mode() != fs.ModeDir|0o777 {
		t.Errorf("%v, %v", fi, err)
	}
	if got := r.kernel.opts[paths["mem"]]; got != "mode=1777,size=10485760" || len(r.kernel.points) != 1 {
		t.Errorf("mounts %q, options %q", r.kernel.points, got)
	}
	// From now on the directory is the pod's.
	if err := errors.Join(os.WriteFile(paths["disk"]+"/f", []byte("x"), 0o600), os.Chmod(paths["disk"], 0o700)); err != nil {
		t.Fatal(err)
	}
	r.prepare(p)
	if fi, _ := os.Stat(paths["disk"]); fi.Mode().Perm() != 0o700 || len(r.kernel.points) != 1 {
		t.Errorf("second Prepare changed mode to %v, mounts %q", fi.Mode(), r.kernel.points)
	}
	r.kernel.points = nil // reboot
	r.prepare(p)
	if len(r.kernel.points) != 1 {
		t.Error("memory was not mounted again after a reboot")
	}
	w := newRig(t, windows)
	w.prepare(p)
	if len(w.kernel.points) != 0 {
		t.Error("Windows mounted memory")
	}
}

func TestMemorySize(t *testing.T) {
	r := newRig(t, linux)
	v := vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}})
	p := makePod(v)
	if got := r.memorySize(p, &v); got != 0 {
		t.Errorf("nothing known: %d", got)
	}
	r.api.node = &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse("4Gi")}}}
	if got := r.memorySize(p, &v); got != 4<<30 {
		t.Errorf("node: %d", got)
	}
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
	if got := r.memorySize(p, &v); got != 1<<30 {
		t.Errorf("pod: %d", got)
	}
	v.EmptyDir.SizeLimit = ptr(resource.MustParse("64Mi"))
	if got := r.memorySize(p, &v); got != 64<<20 {
		t.Errorf("limit: %d", got)
	}
}

func TestFSGroup(t *testing.T) {
	r := newRig(t, linux)
	if os.Geteuid() != 0 {
		t.Skip("changing a file's group needs root")
	}
	r.api.configMaps["conf"] = map[string]string{"a": "1"}
	p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), configMapVol("conf", "conf"))
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(1234))}
	paths := r.prepare(p)
	check := func(path string, mode fs.FileMode) {
		t.Helper()
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if gid, _ := groupOf(fi); gid != 1234 || fi.Mode() != mode {
			t.Errorf("%s: group %d, mode %v, want %v", path, gid, fi.Mode(), mode)
		}
	}
	check(paths["disk"], fs.ModeDir|fs.ModeSetgid|0o777)
	check(filepath.Join(paths["conf"], "a"), 0o644)
	check(filepath.Join(paths["conf"], "..data"), fs.ModeDir|fs.ModeSetgid|0o755)

	// Policy, links and what they lead to.
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Mkdir(dir+"/d", 0o700), os.WriteFile(dir+"/d/f", nil, 0o600), os.Symlink(outside, dir+"/l")); err != nil {
		t.Fatal(err)
	}
	sc := &v1.PodSecurityContext{FSGroup: ptr(int64(1234)), FSGroupChangePolicy: ptr(v1.FSGroupChangeOnRootMismatch)}
	if err := r.setGroup(dir, sc, false); err != nil {
		t.Fatal(err)
	}
	check(dir+"/d", fs.ModeDir|fs.ModeSetgid|0o770)
	check(dir+"/d/f", 0o660)
	if fi, _ := os.Stat(outside); fi.Mode() != 0o600 {
		t.Errorf("a link was followed: %v", fi.Mode())
	}
	if err := errors.Join(os.Chmod(dir+"/d/f", 0o600), r.setGroup(dir, sc, false)); err != nil {
		t.Fatal(err)
	}
	check(dir+"/d/f", 0o600) // the root is right already
	sc.FSGroupChangePolicy = nil
	if err := r.setGroup(dir, sc, true); err != nil {
		t.Fatal(err)
	}
	check(dir+"/d/f", 0o640)
}

func mounts(r *rig, p *v1.Pod, vm v1.VolumeMount, env ...pod.Env) (pod.Mount, error) {
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{vm}
	out, err := r.Mounts(r.t.Context(), p, &p.Spec.Containers[0], env)
	if err != nil {
		return pod.Mount{}, err
	}
	return out[0], nil
}

func TestMounts(t *testing.T) {
	r := newRig(t, linux)
	r.api.configMaps["conf"] = map[string]string{"a": "1"}
	p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), configMapVol("conf", "conf"), hostVol("host", t.TempDir(), ""))
	paths := r.prepare(p)
	got, err := mounts(r, p, v1.VolumeMount{Name: "disk", MountPath: "/data"})
	if want := (pod.Mount{Name: "disk", HostPath: paths["disk"], ContainerPath: "/data"}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	both := v1.MountPropagationBidirectional
	got, err = mounts(r, p, v1.VolumeMount{Name: "host", MountPath: "h", ReadOnly: true, MountPropagation: &both})
	if want := (pod.Mount{Name: "host", HostPath: paths["host"], ContainerPath: "/h", ReadOnly: true, Propagation: both}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	// A file by subPath, through the links of the volume.
	got, err = mounts(r, p, v1.VolumeMount{Name: "conf", MountPath: "/etc/a", SubPath: "a"})
	want := filepath.Join(r.cfg.Root, "pods/uid-1/volume-subpaths/conf/c/0")
	if err != nil || got.HostPath != want || !got.ReadOnly || !strings.HasPrefix(r.kernel.opts[want], "bind ") {
		t.Errorf("%+v, %v, %q", got, err, r.kernel.opts)
	}
	// Made when missing, with the volume's mode; the name from the environment.
	if err := os.Chmod(paths["disk"], 0o2770|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	got, err = mounts(r, p, v1.VolumeMount{Name: "disk", MountPath: "/d", SubPathExpr: "logs/$(POD)/$$x"}, pod.Env{Name: "POD", Value: "old"}, pod.Env{Name: "POD", Value: "web-0"})
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
		if _, err := mounts(r, p, vm, pod.Env{Name: "DOTS", Value: ".."}); err == nil || !strings.Contains(err.Error(), name) {
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
	for _, platform := range []pod.Platform{linux, windows} {
		r := newRig(t, platform)
		if filepath.Separator != '/' {
			t.Skip("making links needs Linux or a privilege")
		}
		p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
		dir := r.prepare(p)["disk"]
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
			_, err := mounts(r, p, v1.VolumeMount{Name: "disk", MountPath: "/x", SubPath: sub})
			if (err == nil) != ok {
				t.Errorf("%s: subPath %q: %v", platform.OS, sub, err)
			}
		}
		if left, _ := os.ReadDir(outside); len(left) != 0 {
			t.Errorf("made outside of the volume: %v", left)
		}
	}
}

// A container exchanges a directory for a link while its subPath is being prepared: what is bound is in the volume or nothing is.
func TestSubPathRace(t *testing.T) {
	r := newRig(t, linux)
	p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	dir := r.prepare(p)["disk"]
	outside := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/real", 0o755), os.Mkdir(dir+"/real/x", 0o755), os.Mkdir(outside+"/x", 0o755)); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var racer sync.WaitGroup
	racer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			target := "real"
			if i%2 == 0 {
				target = outside
			}
			os.Symlink(target, dir+"/tmp")
			os.Rename(dir+"/tmp", dir+"/link")
		}
	})
	bad, err := os.Stat(outside + "/x")
	if err != nil {
		t.Fatal(err)
	}
	good := 0
	for i := 0; i < 3000 || good == 0 && i < 100000; i++ {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		f, err := openInside(root, "link/x")
		root.Close()
		if err != nil {
			continue
		}
		good++
		if fi, err := f.Stat(); err != nil || os.SameFile(fi, bad) {
			t.Fatalf("round %d: opened a directory outside of the volume, %v", i, err)
		}
		f.Close()
	}
	close(stop)
	racer.Wait()
	if good == 0 {
		t.Error("never opened anything")
	}
}

func TestSubPathWindows(t *testing.T) {
	r := newRig(t, windows)
	r.api.configMaps["conf"] = map[string]string{"a": "1"}
	p := makePod(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), configMapVol("conf", "conf"))
	paths := r.prepare(p)
	got, err := mounts(r, p, v1.VolumeMount{Name: "disk", MountPath: "/d", SubPath: `a\b`})
	if err != nil || got.HostPath != filepath.Join(paths["disk"], "a", "b") || got.ContainerPath != `C:\d` {
		t.Errorf("%+v, %v", got, err)
	}
	for sub, part := range map[string]string{`..\x`: "must not contain '..'", `C:\x`: "must not be an absolute path", `\x`: "must not be an absolute path", "c:x": "must not be an absolute path",
		"a/nul": "name of a device", "ab:c": "is not a file name", "COM1.txt": "name of a device"} {
		if _, err := mounts(r, p, v1.VolumeMount{Name: "disk", MountPath: "/d", SubPath: sub}); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("subPath %q: %v", sub, err)
		}
	}
}

func TestExpand(t *testing.T) {
	env := []pod.Env{{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)"}}
	for in, want := range map[string]string{"": "", "x$(A)y": "x1y", "$$(A)": "$(A)", "$(B)": "$(A)", "$": "$", "a$": "a$", "$(A": "$(A", "$x": "$x", "$$$(A)": "$1", "$()": "!", "$(C)": "!"} {
		got, err := expand(in, env)
		if (want == "!") != (err != nil) || err == nil && got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

func TestClean(t *testing.T) {
	r := newRig(t, linux)
	r.api.secrets["s"] = map[string][]byte{"k": []byte("v")}
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/keep", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := makePod(vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}), vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), hostVol("host", outside, ""))
	paths := r.prepare(p)
	if _, err := mounts(r, p, v1.VolumeMount{Name: "host", MountPath: "/x", SubPath: "sub"}); err != nil {
		t.Fatal(err)
	}
	r.kernel.points = append(r.kernel.points, paths["disk"]+"/by the pod", paths["disk"]+"/by the pod") // mounted twice
	if err := errors.Join(os.Symlink(outside, paths["disk"]+"/link"), os.Mkdir(paths["disk"]+"/locked", 0)); err != nil {
		t.Fatal(err)
	}
	if uids, err := r.Leftovers(); err != nil || len(uids) != 1 || uids[0] != "uid-1" {
		t.Errorf("%v, %v", uids, err)
	}
	r.kernel.stuck = paths["disk"] + "/by the pod"
	if err := r.Clean(t.Context(), "uid-1"); err == nil {
		t.Error("deleted although something is mounted")
	}
	if _, err := os.Lstat(paths["disk"] + "/link"); err != nil {
		t.Error("deleted before everything was unmounted")
	}
	r.kernel.stuck = ""
	for range 2 {
		if err := r.Clean(t.Context(), "uid-1"); err != nil {
			t.Error(err)
		}
	}
	if uids, err := r.Leftovers(); err != nil || len(uids) != 0 || len(r.kernel.points) != 0 {
		t.Errorf("left: %v, %q, %v", uids, r.kernel.points, err)
	}
	if _, err := os.Stat(outside + "/keep"); err != nil {
		t.Error("deleted through a link")
	}
	// What stands where only mount points stand and is not empty may be somebody's data.
	full := filepath.Join(r.cfg.Root, "pods/uid-2", subPathsName, "v/c/0/data")
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

func TestMountinfo(t *testing.T) {
	const info = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /r/pods/u rw - tmpfs tmpfs rw
31 30 0:26 / /r/pods/u/a\040b\134c rw shared:1 master:2 - tmpfs tmpfs rw
32 22 0:27 / /r/pods/u2 rw - tmpfs tmpfs rw
33 22 0:27 / /r/pods/u/gone//deleted rw - tmpfs tmpfs rw

short line
`
	want := []string{"/r/pods/u", `/r/pods/u/a b\c`, "/r/pods/u/gone"}
	if filepath.Separator != '/' {
		t.Skip("mountinfo is Linux's")
	}
	if got := parseMountinfo([]byte(info), "/r/pods/u"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add([]byte("30 22 0:25 / /d/x\\040y rw - tmpfs tmpfs rw\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range parseMountinfo(data, "/d") {
			if !strings.HasPrefix(p, "/d") {
				t.Fatalf("%q is not below /d", p)
			}
		}
	})
}

func FuzzSubPath(f *testing.F) {
	for _, s := range []string{"a/b", "..", `..\..\x`, "C:x", "/etc", "a//./b", "nul"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, p := range []pod.Platform{linux, windows} {
			clean, err := cleanSubPath(p, s)
			if err != nil {
				continue
			}
			local := filepath.IsLocal(clean) || runtime.GOOS != p.OS // backslashes and drives are in names of Linux
			if !local || slices.Contains(strings.Split(clean, "/"), "..") {
				t.Fatalf("%s: %q became %q", p.OS, s, clean)
			}
			if p.OS == "windows" && strings.ContainsAny(clean, `\:`) {
				t.Fatalf("%q became %q", s, clean)
			}
			if again, err := cleanSubPath(p, clean); err != nil || again != clean {
				t.Fatalf("%q became %q and then %q, %v", s, clean, again, err)
			}
		}
	})
}
