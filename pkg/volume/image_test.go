package volume

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
)

// registry is an engine with one image.
type registry struct {
	data    []byte
	exports int
	err     error
}

func (g *registry) Ensure(context.Context, *v1.Pod, *v1.Volume) (pod.Image, error) {
	return pod.Image{ID: "sha256:abc"}, g.err
}

func (g *registry) Export(context.Context, string) (io.ReadCloser, error) {
	g.exports++
	return io.NopCloser(bytes.NewReader(g.data)), nil
}

func archiveOf(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		data := h.PAXRecords["data"]
		h.PAXRecords, h.Size = nil, int64(len(data))
		h.Uid, h.Gid = os.Getuid(), os.Getgid()
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func regular(name, data string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, PAXRecords: map[string]string{"data": data}}
}

func imageVol() v1.Volume {
	return vol("v", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "i:1"}})
}

func TestImage(t *testing.T) {
	r := newRig(t, linux)
	g := &registry{data: archiveOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o555}, regular("d/f", "one", 0o640),
		tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "d/f"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "abs", Linkname: "/etc/passwd"},
		tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}, regular(".dockerenv", "", 0o755))}
	r.images.source = g
	p, other := makePod(imageVol()), makePod(imageVol())
	other.UID = "uid-2"
	var m pod.Mount
	for _, p := range []*v1.Pod{p, other, p} {
		r.prepare(p)
		var err error
		if m, err = mounts(r, p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || !m.ReadOnly {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	if link, err := os.Readlink(filepath.Join(m.HostPath, "abs")); err != nil || link != "/etc/passwd" || os.Remove(filepath.Join(m.HostPath, "abs")) != nil {
		t.Errorf("link: %q, %v", link, err)
	}
	if got := tree(t, m.HostPath); got != "d/f 640 one\nhard 640 one\n" || g.exports != 1 {
		t.Errorf("exported %d times:\n%s", g.exports, got)
	}
	if fi, err := os.Stat(filepath.Join(m.HostPath, "d")); err != nil || fi.Mode().Perm() != 0o555 {
		t.Errorf("directory: %v, %v", fi.Mode(), err)
	}
	if m, err := mounts(r, p, v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "d"}); err != nil || !strings.Contains(m.HostPath, subPathsName) {
		t.Errorf("subPath: %+v, %v", m, err)
	}
	if _, err := mounts(r, p, v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "no"}); err == nil || exists(filepath.Join(m.HostPath, "no")) {
		t.Errorf("missing subPath: %v", err)
	}
	for i, p := range []*v1.Pod{p, other} {
		if err := r.Clean(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
		if there := exists(m.HostPath); there != (i == 0) {
			t.Errorf("after %d pods have gone: there %v", i+1, there)
		}
	}
	left, err := os.ReadDir(r.images.dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// A pull's own reason reaches the caller.
	told := &pod.StartError{Reason: "ErrImagePull"}
	g.err = told
	r.prepare(p)
	if _, err := mounts(r, p, v1.VolumeMount{Name: "v", MountPath: "/x"}); !errors.Is(err, told) {
		t.Errorf("pull: %v", err)
	}
}

// Nothing of an archive comes to lie outside, and what was cut short begins anew.
func TestImageTricks(t *testing.T) {
	outside := t.TempDir()
	for name, headers := range map[string][]tar.Header{
		"dots":           {regular("../../evil", "x", 0o644)},
		"through a link": {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, regular("l/evil", "x", 0o644)},
		"relative link":  {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../../.."}, regular("l/evil", "x", 0o644)},
		"hard link":      {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../../../etc/passwd"}},
		"link replaced":  {{Typeflag: tar.TypeSymlink, Name: "f", Linkname: outside + "/evil"}, regular("f", "x", 0o644)},
	} {
		r := newRig(t, linux)
		g := &registry{data: archiveOf(t, headers...)}
		r.images.source = g
		p := makePod(imageVol())
		r.prepare(p)
		if _, err := mounts(r, p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
			t.Errorf("%s: %v, %v", name, left, err)
		}
		g.data = archiveOf(t, regular("ok", "x", 0o644))
		if m, err := mounts(r, p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || tree(t, m.HostPath) != "ok 644 x\n" {
			t.Errorf("%s: again: %v", name, err)
		}
	}
}

// TestPlaces: the pod's own volumes and claims are measured, not what is the host's or many pods'; memory and claims have a size of their own.
func TestPlaces(t *testing.T) {
	r := newRig(t, linux)
	local := t.TempDir()
	r.bind("data", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: local}})
	p := makePod(vol("e", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), claimVol(false), hostVol("h", t.TempDir(), ""), imageVol(),
		vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}))
	p.Spec.Volumes[3].Name = "image"
	r.images.source = &registry{}
	paths := r.prepare(p)
	got, err := r.Places(p)
	want := []disk.Place{{Volume: "e", Path: paths["e"], EmptyDir: true}, {Volume: p.Spec.Volumes[1].Name, Claim: "data", Path: local, Own: true},
		{Volume: "mem", Path: paths["mem"], EmptyDir: true, Own: true, Memory: true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if dir := r.Dir(p.UID); filepath.Join(dir, "volumes", emptyDirName, "e") != paths["e"] || r.Dir("../x") != "" {
		t.Errorf("directory %q", dir)
	}
}

// TestKeepFiles: what is not wanted any more goes, whatever a container has made of it; links are not followed.
func TestKeepFiles(t *testing.T) {
	r := newRig(t, linux)
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
	if got := tree(t, r.Dir(uid)); got != "containers/other/termination-0 666 containers/other/termination-0\ncontainers/web/termination-2 666 containers/web/termination-2\n"+
		"containers/web/termination-3 666 containers/web/termination-3\netc-hosts 666 etc-hosts\n" || !exists(outside) {
		t.Errorf("left:\n%s", got)
	}
	if err := r.KeepFiles(uid, "containers/none"); err != nil {
		t.Errorf("no such directory: %v", err)
	}
	if err := r.KeepFiles(uid, "../.."); err == nil {
		t.Error("a directory outside was cleared")
	}
}
