package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/winkube/winkube/test/registry"
)

// TestRegistry: the registry serves the images in the index, with layers from their original files.
func TestRegistry(t *testing.T) {
	l, err := writeLayer(filepath.Join(t.TempDir(), "layer.tar"), []entry{{name: "x", mode: 0o644, data: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRegistry([]stored{{Name: "group/a:1", Config: []byte(`{"os":"linux"}`), Layers: []storedLayer{{l.path, l.digest, l.size}}}})
	if err != nil {
		t.Fatal(err)
	}
	for path, digest := range map[string]string{"manifests/1": "", "blobs/sha256:" + l.digest: "sha256:" + l.digest} {
		answer := httptest.NewRecorder()
		r.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/v2/group/a/"+path, nil))
		if got := registry.Digest(answer.Body.Bytes()); answer.Code != http.StatusOK || digest != "" && got != digest {
			t.Errorf("%s: status %d, digest %s", path, answer.Code, got)
		}
	}
}
