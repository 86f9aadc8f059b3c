package access_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func TestFSGroup(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	if os.Geteuid() != 0 {
		t.Skip("changing a file's group needs root")
	}
	r.API.ConfigMaps["conf"] = map[string]string{"a": "1"}
	p := volumetest.Pod(volumetest.Vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), volumetest.ConfigMapVol("conf", "conf"))
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(1234))}
	paths := r.MustPrepare(p)
	check := func(path string, mode fs.FileMode) {
		t.Helper()
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if gid, _ := access.GroupOf(fi); gid != 1234 || fi.Mode() != mode {
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
	sc := &v1.PodSecurityContext{FSGroup: new(int64(1234)), FSGroupChangePolicy: new(v1.FSGroupChangeOnRootMismatch)}
	if err := r.Host.Access.SetGroup(dir, sc, false); err != nil {
		t.Fatal(err)
	}
	check(dir+"/d", fs.ModeDir|fs.ModeSetgid|0o770)
	check(dir+"/d/f", 0o660)
	if fi, _ := os.Stat(outside); fi.Mode() != 0o600 {
		t.Errorf("a link was followed: %v", fi.Mode())
	}
	if err := errors.Join(os.Chmod(dir+"/d/f", 0o600), r.Host.Access.SetGroup(dir, sc, false)); err != nil {
		t.Fatal(err)
	}
	check(dir+"/d/f", 0o600) // the root is right already
	sc.FSGroupChangePolicy = nil
	if err := r.Host.Access.SetGroup(dir, sc, true); err != nil {
		t.Fatal(err)
	}
	check(dir+"/d/f", 0o640)
}
