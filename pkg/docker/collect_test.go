package docker

import (
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
)

// TestImageUses: an image is used while there is a container of it, running or not; one goes under all its names; nothing is forced.
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
