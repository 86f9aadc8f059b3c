package kinds_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/paths"
	"github.com/winkube/winkube/pkg/volume/volumetest"
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
	return volumetest.Vol("v", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "i:1"}})
}

func TestImage(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	g := &registry{data: archiveOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o555}, regular("d/f", "one", 0o640),
		tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "d/f"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "abs", Linkname: "/etc/passwd"},
		tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}, regular(".dockerenv", "", 0o755))}
	r.Images = g
	p, other := volumetest.Pod(imageVol()), volumetest.Pod(imageVol())
	other.UID = "uid-2"
	var m pod.Mount
	for _, p := range []*v1.Pod{p, other, p} {
		r.MustPrepare(p)
		var err error
		if m, err = r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || !m.ReadOnly {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	if link, err := os.Readlink(filepath.Join(m.HostPath, "abs")); err != nil || link != "/etc/passwd" || os.Remove(filepath.Join(m.HostPath, "abs")) != nil {
		t.Errorf("link: %q, %v", link, err)
	}
	if got := volumetest.Tree(t, m.HostPath); got != "d/f 640 one\nhard 640 one\n" || g.exports != 1 {
		t.Errorf("exported %d times:\n%s", g.exports, got)
	}
	if fi, err := os.Stat(filepath.Join(m.HostPath, "d")); err != nil || fi.Mode().Perm() != 0o555 {
		t.Errorf("directory: %v, %v", fi.Mode(), err)
	}
	if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "d"}); err != nil || !strings.Contains(m.HostPath, "volume-subpaths") {
		t.Errorf("subPath: %+v, %v", m, err)
	}
	if _, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "no"}); err == nil || paths.Exists(filepath.Join(m.HostPath, "no")) {
		t.Errorf("missing subPath: %v", err)
	}
	for i, p := range []*v1.Pod{p, other} {
		if err := r.Clean(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
		if there := paths.Exists(m.HostPath); there != (i == 0) {
			t.Errorf("after %d pods have gone: there %v", i+1, there)
		}
	}
	left, err := os.ReadDir(filepath.Join(r.Host.Root, "images"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// A pull's own reason reaches the caller.
	told := &pod.StartError{Reason: "ErrImagePull"}
	g.err = told
	r.MustPrepare(p)
	if _, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x"}); !errors.Is(err, told) {
		t.Errorf("pull: %v", err)
	}
}

// Nothing of an archive is written outside, and what was cut short starts over.
func TestImageTricks(t *testing.T) {
	outside := t.TempDir()
	for name, headers := range map[string][]tar.Header{
		"dots":           {regular("../../evil", "x", 0o644)},
		"through a link": {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, regular("l/evil", "x", 0o644)},
		"relative link":  {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../../.."}, regular("l/evil", "x", 0o644)},
		"hard link":      {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../../../etc/passwd"}},
		"link replaced":  {{Typeflag: tar.TypeSymlink, Name: "f", Linkname: outside + "/evil"}, regular("f", "x", 0o644)},
	} {
		r := volumetest.New(t, volumetest.Linux())
		g := &registry{data: archiveOf(t, headers...)}
		r.Images = g
		p := volumetest.Pod(imageVol())
		r.MustPrepare(p)
		if _, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
			t.Errorf("%s: %v, %v", name, left, err)
		}
		g.data = archiveOf(t, regular("ok", "x", 0o644))
		if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || volumetest.Tree(t, m.HostPath) != "ok 644 x\n" {
			t.Errorf("%s: again: %v", name, err)
		}
	}
}
