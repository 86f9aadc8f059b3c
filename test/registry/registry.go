// Package registry is an image registry for tests: go-containerregistry's, extended with layers from files,
// credentials, a record of requests, and blocked pulls.
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

// Layer is an uncompressed layer of an image: a file, or data.
type Layer struct {
	Path string
	Data []byte
	Size int64
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string
}

// LayerOf returns a layer with data.
func LayerOf(data []byte) Layer {
	return Layer{Data: data, Size: int64(len(data)), Digest: Digest(data)}
}

// Digest returns the digest of data as registries write it.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Password returns the password of user.
func Password(user string) string { return user + "-secret" }

// Auth is how clients authenticate. Repositories below private/USER/ require USER.
type Auth int

const (
	// Open allows anonymous access to everything.
	Open Auth = iota
	// Basic requires the name and Password of any user for everything.
	Basic
	// Token issues tokens; anonymous clients also get them, for public repositories.
	Token
)

// Registry is an http.Handler. Its methods may be called while it serves.
type Registry struct {
	auth  Auth
	inner http.Handler
	blobs *blobs

	mu       sync.Mutex
	configs  map[string]bool        // by digest
	asked    map[string][]time.Time // by name:tag, when an authorized client requested the manifest
	hold     chan struct{}          // if set, configurations are not served until it is closed
	inFlight map[string]bool        // repositories with blocked pulls
}

// New returns an empty Registry.
func New(auth Auth) *Registry {
	b := &blobs{known: map[string]Layer{}}
	quiet := registry.Logger(log.New(io.Discard, "", 0))
	return &Registry{auth: auth, inner: registry.New(quiet, registry.WithBlobHandler(b)), blobs: b,
		configs: map[string]bool{}, asked: map[string][]time.Time{}, inFlight: map[string]bool{}}
}

// Add adds an image with a name such as "group/app:1" and a Docker manifest, and returns the manifest's digest. It
// replaces an image of that name.
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

// Hold blocks pulls before their end until release is called.
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

// Held returns the number of repositories with blocked pulls.
func (r *Registry) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.inFlight)
}

// Requests returns when authorized clients requested the manifest of name.
func (r *Registry) Requests(name string) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked[name])
}

// ServeHTTP implements http.Handler. It only serves reads.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if q.URL.Path == "/token" && r.auth == Token {
		user, pass, given := q.BasicAuth()
		if q.Method == http.MethodPost { // containerd logs in with OAuth, https://distribution.github.io/distribution/spec/auth/oauth/
			user, pass = q.PostFormValue("username"), q.PostFormValue("password")
			given = user != ""
		}
		if given && pass != Password(user) {
			user = ""
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "of-" + user, "access_token": "of-" + user}) // access_token is OAuth's name
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

// wait blocks the request for a configuration while Hold is active.
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

// allows reports whether a client may access a repository; "" is the registry itself.
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

// blobs implements registry.BlobHandler and registry.BlobStatHandler: all repositories share all blobs.
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
