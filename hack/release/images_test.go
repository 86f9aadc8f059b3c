package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/opencontainers/image-spec/schema"

	"github.com/winkube/winkube/test/output"
)

// archived makes the archive of an image of a program.
func archived(t *testing.T, p program) []byte {
	t.Helper()
	s := &source{Version: "1.2.3", Commit: strings.Repeat("a", 40), When: when}
	image, err := s.imageOf(p, []byte("licence"), []byte("licences"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := s.writeImage(&out, image, imageName(p.Name, s.Version)); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// unpacked puts an archive's files into a directory.
func unpacked(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(filepath.Join(dir, h.Name), 0o755)
		} else if data, readErr := io.ReadAll(r); readErr != nil {
			err = readErr
		} else {
			err = os.WriteFile(filepath.Join(dir, h.Name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// layerOf are the files in an image's one layer, with their modes and links.
func layerOf(t *testing.T, image v1.Image) map[string]tar.Header {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	have := map[string]tar.Header{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return have
		}
		if err != nil {
			t.Fatal(err)
		}
		have[h.Name] = *h
	}
}

// meetsSpecification checks an image layout's documents against the JSON schemas and validators of OCI's own image specification.
func meetsSpecification(t *testing.T, dir string) {
	t.Helper()
	check := func(as schema.Validator, name ...string) (document struct {
		Manifests []struct{ Digest string }
		Config    struct{ Digest string }
	}) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(append([]string{dir}, name...)...))
		if err == nil {
			err = errors.Join(as.Validate(bytes.NewReader(data)), json.Unmarshal(data, &document))
		}
		if err != nil {
			t.Errorf("%s as %s: %v", filepath.Join(name...), as, err)
		}
		return document
	}
	blob := func(digest string) []string {
		algorithm, sum, _ := strings.Cut(digest, ":")
		return []string{"blobs", algorithm, sum}
	}
	check(schema.ValidatorMediaTypeLayoutHeader, "oci-layout")
	manifests := check(schema.ValidatorMediaTypeImageIndex, "index.json").Manifests
	if len(manifests) == 0 {
		t.Errorf("the index of %s names no manifest", dir)
	}
	for _, one := range manifests {
		manifest := check(schema.ValidatorMediaTypeManifest, blob(one.Digest)...)
		check(schema.ValidatorMediaTypeImageConfig, blob(manifest.Config.Digest)...)
	}
}

// TestImages: the archive is the same each time, holds one valid image in OCI's and in Docker's older form, and that image is what the manifests expect.
func TestImages(t *testing.T) {
	for _, c := range []struct {
		program    program
		user, path string
		files      []string
	}{
		{program{Name: "proxy", System: "linux", Arch: "arm64", Data: []byte("p")}, "", "PATH=/usr/sbin:/usr/bin",
			[]string{"bin", "lib", "lib64", "licenses/", "licenses/LICENSE", "licenses/THIRD_PARTY_LICENSES.txt", "proxy", "sbin"}},
		{program{Name: "pause", System: "linux", Arch: "amd64", Data: []byte("p")}, pauseUser, "",
			[]string{"licenses/", "licenses/LICENSE", "licenses/THIRD_PARTY_LICENSES.txt", "pause"}},
	} {
		data := archived(t, c.program)
		if !bytes.Equal(data, archived(t, c.program)) {
			t.Errorf("%s: a second archive differs", c.program.Name)
		}
		dir := unpacked(t, data)
		meetsSpecification(t, dir)
		index, err := layout.Path(dir).ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(index); err != nil {
			t.Errorf("%s: %v", c.program.Name, err)
		}
		top, err := index.IndexManifest()
		if err != nil || len(top.Manifests) != 1 {
			t.Fatalf("%s: %+v, %v", c.program.Name, top, err)
		}
		one := top.Manifests[0]
		if one.Annotations["org.opencontainers.image.ref.name"] != "winkube/"+c.program.Name+":1.2.3" || one.Annotations["io.containerd.image.name"] != "docker.io/winkube/"+c.program.Name+":1.2.3" ||
			one.Platform.String() != "linux/"+c.program.Arch {
			t.Errorf("%s: the index has %+v", c.program.Name, one)
		}
		older, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(older); err != nil {
			t.Errorf("%s, Docker's form: %v", c.program.Name, err)
		}
		image, err := index.Image(one.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.OS != "linux" || config.Architecture != c.program.Arch || !config.Created.Equal(when) || config.Config.User != c.user || strings.Join(config.Config.Env, " ") != c.path ||
			!slices.Equal(config.Config.Entrypoint, []string{"/" + c.program.Name}) || config.Config.Labels["org.opencontainers.image.revision"] != strings.Repeat("a", 40) {
			t.Errorf("%s: the configuration is %+v", c.program.Name, config)
		}
		have := layerOf(t, image)
		if names := slices.Sorted(maps.Keys(have)); !slices.Equal(names, c.files) {
			t.Errorf("%s: the layer has %q, want %q", c.program.Name, names, c.files)
		}
		if h := have[c.program.Name]; h.Mode != 0o755 || h.Uid != 0 {
			t.Errorf("%s has mode %o and owner %d", c.program.Name, h.Mode, h.Uid)
		}
		if h, ok := have["sbin"]; ok && (h.Typeflag != tar.TypeSymlink || h.Linkname != "usr/sbin" || h.Size != 0) {
			t.Errorf("sbin is %+v", h)
		}
	}
}

// TestSkopeo: skopeo, which is not ours, accepts the images and copies them with the digests that their index names: with WINKUBE_INSTALL those of the
// release that was made, else images of stand-ins.
func TestSkopeo(t *testing.T) {
	dir, want := filepath.Join("..", "..", "_output", "release"), 4
	if os.Getenv("WINKUBE_INSTALL") != "" {
		prepare := exec.CommandContext(t.Context(), filepath.Join("..", "ensure-packages.sh"), "release")
		prepare.Stderr = os.Stderr
		if err := prepare.Run(); err != nil {
			t.Fatal(err)
		}
	} else {
		if _, err := exec.LookPath("skopeo"); err != nil {
			t.Skip("skopeo is missing: hack/ensure-packages.sh release")
		}
		dir, want = t.TempDir(), 2
		for _, p := range []program{{Name: "proxy", System: "linux", Arch: "arm64", Data: []byte("p")}, {Name: "pause", System: "linux", Arch: "amd64", Data: []byte("p")}} {
			if err := os.WriteFile(filepath.Join(dir, p.Name+".oci.tar"), archived(t, p), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.oci.tar"))
	if err != nil || len(archives) != want {
		t.Fatalf("archives %q, %v; want %d", archives, err, want)
	}
	for _, archive := range archives {
		data, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		dir := unpacked(t, data)
		meetsSpecification(t, dir)
		index, err := layout.Path(dir).ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		top, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		arch := top.Manifests[0].Platform.Architecture
		got, err := output.Of(exec.CommandContext(t.Context(), "skopeo", "--override-arch", arch, "inspect", "oci-archive:"+archive))
		if err != nil {
			t.Fatal(err)
		}
		var seen struct{ Digest, Architecture, Os string }
		if err := json.Unmarshal([]byte(got.Stdout), &seen); err != nil || seen.Digest != top.Manifests[0].Digest.String() || seen.Architecture != arch || seen.Os != "linux" {
			t.Errorf("%s: skopeo reads %+v (%v), the index has %+v", archive, seen, err, top.Manifests[0])
		}
		for _, from := range []string{"oci-archive:", "docker-archive:"} { // copying checks each blob against its digest
			if _, err := output.Of(exec.CommandContext(t.Context(), "skopeo", "--insecure-policy", "--override-arch", arch, "copy", "--quiet", from+archive, "dir:"+t.TempDir())); err != nil {
				t.Errorf("%s%s: %v", from, archive, err)
			}
		}
		t.Logf("%s: %s %s/%s", filepath.Base(archive), seen.Digest, seen.Os, seen.Architecture)
	}
}
