package registry

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
)

// client sends requests to a registry as an engine does.
type client struct {
	*testing.T
	url string
}

func serve(t *testing.T, r *Registry) client {
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return client{t, server.URL}
}

func (c client) get(path string, want int, with func(*http.Request)) ([]byte, http.Header) {
	c.Helper()
	q, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.url+path, nil)
	if err != nil {
		c.Fatal(err)
	}
	if with != nil {
		with(q)
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		c.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != want {
		c.Fatalf("%s: %s, %v, want status %d", path, answer.Status, err, want)
	}
	return data, answer.Header
}

// TestPull pulls as an engine does: the tag's manifest, then everything it lists, and verifies each digest.
func TestPull(t *testing.T) {
	file := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(file, []byte("a layer"), 0o644); err != nil {
		t.Fatal(err)
	}
	onDisk := LayerOf([]byte("a layer"))
	onDisk.Path, onDisk.Data = file, nil
	r := New(Open)
	digest, err := r.Add("group/a:1", []byte(`{"os":"linux"}`), onDisk, LayerOf([]byte("another")))
	if err != nil {
		t.Fatal(err)
	}
	c := serve(t, r)
	c.get("/v2/", http.StatusOK, nil)
	data, header := c.get("/v2/group/a/manifests/1", http.StatusOK, nil)
	if header.Get("Content-Type") != "application/vnd.docker.distribution.manifest.v2+json" || header.Get("Docker-Content-Digest") != digest || Digest(data) != digest {
		t.Errorf("the manifest %s comes with %v", digest, header)
	}
	if again, _ := c.get("/v2/group/a/manifests/"+digest, http.StatusOK, nil); string(again) != string(data) {
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
	if err := json.Unmarshal(data, &manifest); err != nil || len(manifest.Layers) != 2 {
		t.Fatalf("%s: %v", data, err)
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		if blob, _ := c.get("/v2/group/a/blobs/"+d.Digest, http.StatusOK, nil); Digest(blob) != d.Digest || len(blob) != d.Size {
			t.Errorf("%v gave %d bytes with the digest %s", d, len(blob), Digest(blob))
		}
	}
	c.get("/v2/group/a/manifests/2", http.StatusNotFound, nil)
	c.get("/v2/group/b/manifests/1", http.StatusNotFound, nil)
	c.get("/v2/group/a/blobs/"+Digest(nil), http.StatusNotFound, nil)
	c.get("/v2/group/a/manifests/3", http.StatusMethodNotAllowed, func(q *http.Request) { q.Method = http.MethodPut })
	if n := len(r.Requests("group/a:1")); n != 1 {
		t.Errorf("%d requests for the tag, want 1", n)
	}
}

// TestAuth: private repositories require their owner's password or token. A rejection says how to authenticate, and
// does not count as a request.
func TestAuth(t *testing.T) {
	as := func(user, pass string) func(*http.Request) {
		return func(q *http.Request) { q.SetBasicAuth(user, pass) }
	}
	for _, auth := range []Auth{Basic, Token} {
		r := New(auth)
		for _, name := range []string{"public/a:1", "private/alice/a:1"} {
			if _, err := r.Add(name, []byte(`{}`)); err != nil {
				t.Fatal(err)
			}
		}
		c := serve(t, r)
		want := `Basic realm="test"`
		if auth == Token {
			want = `Bearer realm="` + c.url + `/token",service="test"`
		}
		if _, header := c.get("/v2/", http.StatusUnauthorized, nil); header.Get("WWW-Authenticate") != want {
			t.Errorf("the challenge is %s, want %s", header.Get("WWW-Authenticate"), want)
		}
		for _, test := range []struct {
			user, pass, repository string
			want                   int
		}{
			{"alice", Password("alice"), "private/alice/a", http.StatusOK}, {"bob", Password("bob"), "private/alice/a", http.StatusUnauthorized},
			{"alice", "wrong", "private/alice/a", http.StatusUnauthorized}, {"bob", Password("bob"), "public/a", http.StatusOK},
		} {
			with := as(test.user, test.pass)
			if auth == Token {
				var token struct{ Token string }
				data, _ := c.get("/token", http.StatusOK, with)
				if err := json.Unmarshal(data, &token); err != nil {
					t.Fatal(err)
				}
				with = func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+token.Token) }
			}
			c.get("/v2/"+test.repository+"/manifests/1", test.want, with)
		}
		if n := len(r.Requests("private/alice/a:1")); n != 1 {
			t.Errorf("%d requests count, want 1", n)
		}
	}
}

// TestHold: the configuration is blocked; layers are not.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Open)
		config, layer := []byte(`{}`), LayerOf([]byte("x"))
		if _, err := r.Add("a:1", config, layer); err != nil {
			t.Fatal(err)
		}
		release := r.Hold()
		get := func(digest string) *httptest.ResponseRecorder {
			answer := httptest.NewRecorder()
			r.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/a/blobs/"+digest, nil))
			return answer
		}
		if answer := get(layer.Digest); answer.Body.String() != "x" {
			t.Errorf("the layer: %d %s", answer.Code, answer.Body)
		}
		var held *httptest.ResponseRecorder
		var pull sync.WaitGroup
		pull.Go(func() { held = get(Digest(config)) })
		synctest.Wait()
		if held != nil || r.Held() != 1 {
			t.Errorf("served while it is held: %v; %d held", held != nil, r.Held())
		}
		release()
		release()
		pull.Wait()
		if held.Body.String() != "{}" || r.Held() != 0 {
			t.Errorf("served %d %s, %d held", held.Code, held.Body, r.Held())
		}
	})
}
