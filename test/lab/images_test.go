package lab

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestImageIsReproducible builds an image twice: an engine keeps its image if the ID is equal.
func TestImageIsReproducible(t *testing.T) {
	img := image{name: "winkube/x:1", program: "x", links: []string{"bin/sh"}, entrypoint: []string{"/x"}}
	var ids [2]string
	for i := range ids {
		layer, err := img.layer([]byte("program"))
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.config(layer)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = digest(config)
	}
	if ids[0] != ids[1] {
		t.Errorf("two ids of one image: %s, %s", ids[0], ids[1])
	}
}

// TestImageArchive reads an archive as an engine does: the manifest names the configuration, which names the layer by
// digest.
func TestImageArchive(t *testing.T) {
	img := image{name: "winkube/x:1", program: "x", links: []string{"bin/sh"}, entrypoint: []string{"/x"}}
	layer, err := img.layer([]byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.config(layer)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.tar")
	if err := img.write(path, layer, config); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := entries(t, data)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || len(manifest[0].Layers) != 1 || manifest[0].RepoTags[0] != img.name {
		t.Fatalf("manifest: %+v", manifest)
	}
	var read struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal([]byte(files[manifest[0].Config]), &read); err != nil {
		t.Fatal(err)
	}
	if got := "sha256:" + digest([]byte(files[manifest[0].Layers[0]])); len(read.RootFS.DiffIDs) != 1 || read.RootFS.DiffIDs[0] != got {
		t.Errorf("configuration names layers %v, the layer is %s", read.RootFS.DiffIDs, got)
	}
	inside := entries(t, []byte(files[manifest[0].Layers[0]]))
	if inside["x"] != "program" || inside["bin/sh"] != "-> x" {
		t.Errorf("layer holds %q", inside)
	}
}

// entries reads a tar file; the content of a link is its target.
func entries(t *testing.T, data []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	r := tar.NewReader(bytes.NewReader(data))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
		if header.Typeflag == tar.TypeLink {
			files[header.Name] = "-> " + header.Linkname
		}
	}
}

// TestSeal checks that an image is identified by its content, and that the label itself does not count as content.
func TestSeal(t *testing.T) {
	config := func(user string) []byte {
		data, err := Seal(map[string]any{"os": "linux", "config": map[string]any{"User": user, "Labels": map[string]string{"a": "b"}}})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	one, same, other := Content(config("1")), Content(config("1")), Content(config("2"))
	if len(one) != 64 || one != same || one == other {
		t.Errorf("contents %q, %q of the same, %q of another", one, same, other)
	}
	if !bytes.Contains(config("1"), []byte(`"a":"b"`)) {
		t.Errorf("other labels are gone: %s", config("1"))
	}
	if got := Content([]byte("{}")); got != "" {
		t.Errorf("an image without the label has content %q", got)
	}
}

// TestProxyImage: the image finds programs below /usr, where a manifest mounts the host's.
func TestProxyImage(t *testing.T) {
	img := image{name: "winkube/proxy:1", program: "proxy", entrypoint: []string{"/proxy"}, hostPrograms: true}
	layer, err := img.layer([]byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		have[header.Name] = header.Linkname
	}
	want := map[string]string{"proxy": "", "bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
	if !maps.Equal(have, want) {
		t.Errorf("it has %v, want %v", have, want)
	}
	config, err := img.config(layer)
	if err != nil || !bytes.Contains(config, []byte(`"PATH=/usr/sbin:/usr/bin"`)) {
		t.Errorf("%s, %v", config, err)
	}
}
