package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
)

// TestRegistry walks the way of an engine that pulls: the tag's manifest, then all that it names, each held to its digest.
func TestRegistry(t *testing.T) {
	l, err := writeLayer(filepath.Join(t.TempDir(), "layer.tar"), []entry{{name: "x", mode: 0o644, data: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRegistry([]stored{{Name: "group/a:1", Config: []byte(`{"os":"linux"}`), Layers: []storedLayer{{l.path, l.digest, l.size}}}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	defer server.Close()
	get := func(path string, want int) ([]byte, http.Header) {
		t.Helper()
		answer, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		data, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != want {
			t.Fatalf("%s: %s, %v, want status %d", path, answer.Status, err, want)
		}
		return data, answer.Header
	}
	get("/v2/", http.StatusOK)
	data, header := get("/v2/group/a/manifests/1", http.StatusOK)
	if header.Get("Content-Type") != manifestType || header.Get("Docker-Content-Digest") != "sha256:"+sum(data) {
		t.Errorf("the manifest comes with %v", header)
	}
	if again, _ := get("/v2/group/a/manifests/sha256:"+sum(data), http.StatusOK); string(again) != string(data) {
		t.Errorf("by its digest the manifest is %s, want %s", again, data)
	}
	type descriptor struct {
		Digest string
		Size   int
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	if err := json.Unmarshal(data, &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("%s: %v", data, err)
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		if blob, _ := get("/v2/group/a/blobs/"+d.Digest, http.StatusOK); "sha256:"+sum(blob) != d.Digest || len(blob) != d.Size {
			t.Errorf("%v gave %d bytes with the digest %s", d, len(blob), sum(blob))
		}
	}
	get("/v2/group/a/manifests/2", http.StatusNotFound)
	get("/v2/group/b/manifests/1", http.StatusNotFound)
	get("/v2/group/a/blobs/sha256:0", http.StatusNotFound)
}
