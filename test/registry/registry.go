// Package registry is an image registry for tests: go-containerregistry's, whose layers may be files, with what tests of pulls need besides:
// credentials, a record of requests, and pulls that wait.
package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Layer is one of an image, uncompressed: a file, or data.
type Layer struct {
	Path string
	Data []byte
	Size int64
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string
}

// LayerOf is a layer of data.
func LayerOf(data []byte) Layer {
	return Layer{Data: data, Size: int64(len(data)), Digest: Digest(data)}
}

// Digest is the digest of data as a registry names it.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Password is what user is known by.
func Password(user string) string { return user + "-secret" }

// Auth is how clients say who they are. Repositories below private/USER/ want USER.
type Auth int

const (
	// Open lets everyone have everything.
	Open Auth = iota
	// Basic wants the name and Password of some user for everything.
	Basic
	// Token gives tokens, also to clients without a name, for what is public.
	Token
)

// Registry is an http.Handler. Its methods may be called while it serves.
type Registry struct {
	auth  Auth
	inner http.Handler
	blobs *blobs

	mu       sync.Mutex
	configs  map[string]bool        // by digest
	asked    map[string][]time.Time // by name:tag, when a manifest was requested with leave
	hold     chan struct{}          // where set, configurations are not served before it is closed
	inFlight map[string]bool        // repositories whose pulls wait
}

// New makes an empty Registry.
func New(auth Auth) *Registry {
	b := &blobs{known: map[string]Layer{}}
	quiet := registry.Logger(log.New(io.Discard, "", 0))
	return &Registry{auth: auth, inner: registry.New(quiet, registry.WithBlobHandler(b)), blobs: b,
		configs: map[string]bool{}, asked: map[string][]time.Time{}, inFlight: map[string]bool{}}
}

// Add has the registry serve an image by its name, such as "group/app:1", in the form of Docker's manifests, and returns the digest of its
// manifest. An image that has the name already loses it.
func (r *Registry) Add(name string, config []byte, layers ...Layer) (digest string, err error) {
	repository, tag, _ := strings.Cut(name, ":")
	descriptor := func(kind types.MediaType, l Layer) map[string]any {
		return map[string]any{"mediaType": kind, "size": l.Size, "digest": l.Digest}
	}
	of := LayerOf(config)
	var listed []any
	for _, l := range layers {
		listed = append(listed, descriptor(types.DockerUncompressedLayer, l))
	}
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": types.DockerManifestSchema2,
		"config": descriptor(types.DockerConfigJSON, of), "layers": listed})
	if err != nil {
		return "", err
	}
	r.blobs.add(append(slices.Clone(layers), of)...)
	r.mu.Lock()
	r.configs[of.Digest] = true
	r.mu.Unlock()
	put := httptest.NewRequest(http.MethodPut, "/v2/"+repository+"/manifests/"+tag, bytes.NewReader(manifest))
	put.Header.Set("Content-Type", string(types.DockerManifestSchema2))
	answer := httptest.NewRecorder()
	r.inner.ServeHTTP(answer, put)
	if answer.Code != http.StatusCreated {
		return "", fmt.Errorf("the registry refuses the manifest of %s: %s", name, answer.Body)
	}
	return Digest(manifest), nil
}

// Hold keeps pulls from ending until release is called.
func (r *Registry) Hold() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = make(chan struct{})
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(r.hold)
		r.hold = nil
	})
}

// Held counts the repositories whose pulls wait.
func (r *Registry) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.inFlight)
}

// Requests says when the manifest of name was requested by clients that may have it.
func (r *Registry) Requests(name string) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked[name])
}

// ServeHTTP implements http.Handler. It serves reading alone.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if q.URL.Path == "/token" && r.auth == Token {
		user, pass, given := q.BasicAuth()
		if given && pass != Password(user) {
			user = ""
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "of-" + user})
		return
	}
	repository, kind, reference := split(strings.TrimPrefix(q.URL.Path, "/v2/"))
	if !r.allows(q, repository) {
		challenge := `Basic realm="test"`
		if r.auth == Token {
			challenge = fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, q.Host)
		}
		w.Header().Set("WWW-Authenticate", challenge)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return
	}
	switch {
	case q.Method != http.MethodGet && q.Method != http.MethodHead:
		refuse(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "this registry is read-only")
		return
	case kind == "manifests":
		r.mu.Lock()
		name := repository + ":" + reference
		r.asked[name] = append(r.asked[name], time.Now())
		r.mu.Unlock()
	case kind == "blobs":
		r.wait(q.Context(), repository, reference)
	}
	r.inner.ServeHTTP(w, q)
}

// wait holds the request for a configuration up while Hold says so.
func (r *Registry) wait(ctx context.Context, repository, digest string) {
	r.mu.Lock()
	hold := r.hold
	if !r.configs[digest] || hold == nil {
		r.mu.Unlock()
		return
	}
	r.inFlight[repository] = true
	r.mu.Unlock()
	select {
	case <-hold:
	case <-ctx.Done():
	}
	r.mu.Lock()
	delete(r.inFlight, repository)
	r.mu.Unlock()
}

// allows says whether a client may have a repository; "" is the registry itself.
func (r *Registry) allows(q *http.Request, repository string) bool {
	user := ""
	switch r.auth {
	case Open:
		return true
	case Basic:
		name, pass, given := q.BasicAuth()
		if !given || name == "" || pass != Password(name) {
			return false
		}
		user = name
	case Token:
		var given bool
		if user, given = strings.CutPrefix(q.Header.Get("Authorization"), "Bearer of-"); !given {
			return false
		}
	}
	owner, private := strings.CutPrefix(repository, "private/")
	owner, _, _ = strings.Cut(owner, "/")
	return !private || user == owner
}

func split(path string) (repository, kind, reference string) {
	for _, kind := range []string{"manifests", "blobs"} {
		if repository, reference, ok := strings.Cut(path, "/"+kind+"/"); ok {
			return repository, kind, reference
		}
	}
	return "", "", ""
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"errors":[{"code":%q,"message":%q}]}`, code, message)
}

// blobs implements registry.BlobHandler and registry.BlobStatHandler: every repository has all.
type blobs struct {
	mu    sync.Mutex
	known map[string]Layer
}

func (b *blobs) add(layers ...Layer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range layers {
		b.known[l.Digest] = l
	}
}

func (b *blobs) find(h v1.Hash) (Layer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.known[h.String()]
	if !ok {
		return Layer{}, registry.ErrNotFound
	}
	return l, nil
}

func (b *blobs) Stat(_ context.Context, _ string, h v1.Hash) (int64, error) {
	l, err := b.find(h)
	return l.Size, err
}

func (b *blobs) Get(_ context.Context, _ string, h v1.Hash) (io.ReadCloser, error) {
	l, err := b.find(h)
	if err != nil {
		return nil, err
	}
	if l.Path != "" {
		return os.Open(l.Path)
	}
	return io.NopCloser(bytes.NewReader(l.Data)), nil
}
