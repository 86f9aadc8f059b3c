package docker

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/images"
)

// TestImageUses: an image is used while it has a container, running or not; an image is removed with all its names; nothing is forced.
func TestImageUses(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, func(c *Config) { c.InfraImage = "pause:1" })
	r.fake.AddImage(dockertest.Image{ID: "sha256:" + strings.Repeat("1", 64), Names: []string{"pause:1"}, Entrypoint: []string{programPath}})
	r.fake.AddImage(dockertest.Image{ID: "sha256:" + strings.Repeat("2", 64), Names: []string{"idle:1", "idle:2"}, Digests: []string{"idle@sha256:" + strings.Repeat("ab", 32)}, Size: 7})
	r.fake.AddImage(dockertest.Image{ID: "sha256:" + strings.Repeat("3", 64)}) // without a name
	r.sandbox(r.pod("p"))
	list := func() string {
		t.Helper()
		all, err := r.ImageUses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, i := range all {
			word := strings.Join(i.Names, ",")
			if i.Used {
				word += " used"
			}
			if i.Pinned {
				word += " pinned"
			}
			out = append(out, word)
		}
		slices.Sort(out)
		return strings.Join(out, "; ")
	}
	digest := "idle@sha256:" + strings.Repeat("ab", 32)
	if got, want := list(), "; "+digest+",idle:1,idle:2; pause:1 used pinned; "+testImage; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := r.RemoveImage(t.Context(), "sha256:"+strings.Repeat("2", 64)); err != nil {
		t.Error(err)
	}
	if err := r.RemoveImage(t.Context(), "sha256:"+strings.Repeat("3", 64)); err != nil {
		t.Error(err)
	}
	if err := r.RemoveImage(t.Context(), "sha256:"+strings.Repeat("2", 64)); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
	if err := r.RemoveImage(t.Context(), "sha256:"+strings.Repeat("1", 64)); err == nil || !strings.Contains(err.Error(), "is using its referenced image") {
		t.Errorf("one that is used: %v", err)
	}
	if got, want := list(), "pause:1 used pinned; "+testImage; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestRemoveImage does the same on a real engine: an image with two names is removed, one with a container stays.
func TestRemoveImage(t *testing.T) {
	r := realRig(t, nil)
	c, err := r.API(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "keep", Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	const one, two = "winkube.test/idle:1", "winkube.test/other:2"
	answer, err := c.ImageImport(t.Context(), image.ImportSource{Source: &archive, SourceName: "-"}, one, image.ImportOptions{Message: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer)
	answer.Close()
	if err := c.ImageTag(t.Context(), one, two); err != nil {
		t.Fatal(err)
	}
	r.sandbox(r.pod("p"))
	find := func(name string) (images.Use, bool) {
		t.Helper()
		all, err := r.ImageUses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(i images.Use) bool { return slices.Contains(i.Names, name) })
		if i < 0 {
			return images.Use{}, false
		}
		return all[i], true
	}
	idle, ok := find(two)
	if !ok || idle.Used || idle.Pinned || !slices.Contains(idle.Names, one) {
		t.Fatalf("%+v, %t", idle, ok)
	}
	if err := r.RemoveImage(t.Context(), idle.ID); err != nil {
		t.Error(err)
	}
	if still, ok := find(one); ok {
		t.Errorf("still there: %+v", still)
	}
	used, ok := find(testImage)
	if !ok || !used.Used || !used.Pinned {
		t.Errorf("%+v, %t", used, ok)
	}
	if err := r.RemoveImage(t.Context(), used.ID); err == nil {
		t.Error("an image went of which there is a container")
	}
	if _, ok := find(testImage); !ok {
		t.Error("it lost its name")
	}
}
