package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/winkube/winkube/test/lab"
)

// registry is an image registry on a node's own loopback, where engines speak plain HTTP. It has one image, which runs the sample, under
// every name that was added: each has a configuration of its own, so that no two are the same image. Names below private/USER/ want
// USER with the password of that name.
type registry struct {
	t       *testing.T
	addr    string
	program []byte // the layer
	basic   bool   // basic authentication for everything; else tokens, which anyone gets for what is public

	mu        sync.Mutex
	manifests map[string][]byte
	configs   map[string][]byte
	asked     map[string][]time.Time // by name:tag: when a manifest was asked for with leave
	hold      chan struct{}          // where set, configurations are not served before it is closed
	inFlight  map[string]bool        // that wait for hold
}

func password(user string) string { return user + "-secret" }

// newRegistry serves until the test ends. The node has none of its images then: a cluster that was kept may have those of an earlier run.
func newRegistry(t *testing.T, node *lab.Host, port int, basic bool) *registry {
	t.Helper()
	r := &registry{t: t, addr: fmt.Sprintf("127.0.0.1:%d", port), basic: basic, manifests: map[string][]byte{}, configs: map[string][]byte{},
		asked: map[string][]time.Time{}, inFlight: map[string]bool{}}
	var layer bytes.Buffer
	sample, err := os.ReadFile(filepath.Join(cluster.Tools, "sample"))
	if err == nil {
		w := tar.NewWriter(&layer)
		err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "sample", Mode: 0o755, Size: int64(len(sample)), Format: tar.FormatUSTAR})
		_, _ = w.Write(sample)
		_ = w.Close()
	}
	var listener net.Listener
	if err == nil {
		listener, err = listenOn(node, r.addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	left, err := node.Engine().Images(t.Context())
	for _, image := range left {
		if strings.HasPrefix(image, r.addr+"/") {
			err = errors.Join(err, node.Engine().RemoveImage(t.Context(), image))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	r.program = layer.Bytes()
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return r
}

// listenOn opens a port in a node's network.
func listenOn(node *lab.Host, addr string) (listener net.Listener, err error) {
	err = within(node, func() (err error) {
		listener, err = net.Listen("tcp", addr)
		return err
	})
	return listener, err
}

// within does something in a node's network: a socket stays in the network in which it was opened.
func within(node *lab.Host, do func() error) (err error) {
	done := make(chan struct{})
	go func() { // its thread, which is in the wrong network after this, ends with it
		defer close(done)
		runtime.LockOSThread()
		var network netns.NsHandle
		if network, err = netns.GetFromPath("/run/netns/" + node.Namespace()); err != nil {
			return
		}
		defer network.Close()
		if err = netns.Set(network); err == nil {
			err = do()
		}
	}()
	<-done
	return err
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

const (
	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	layerType    = "application/vnd.docker.image.rootfs.diff.tar"
)

// add makes an image known and returns its name for pods and the manifest's digest.
func (r *registry) add(name string) (image, digest string) { return r.addWith(name, nil) }

// addWith is add of an image whose configuration says more.
func (r *registry) addWith(name string, more map[string]any) (image, digest string) {
	says := map[string]any{"Entrypoint": []string{"/sample"}, "Labels": map[string]string{"name": name}}
	maps.Copy(says, more)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": says,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digestOf(r.program)}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	describe := func(kind string, data []byte) map[string]any {
		return map[string]any{"mediaType": kind, "size": len(data), "digest": digestOf(data)}
	}
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": describe(configType, config),
		"layers": []any{describe(layerType, r.program)}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	repository, _, _ := strings.Cut(name, ":")
	r.manifests[name] = manifest
	r.manifests[repository+":"+digestOf(manifest)] = manifest
	r.configs[digestOf(config)] = config
	return r.addr + "/" + name, digestOf(manifest)
}

// holdAll keeps pulls from ending until release is called.
func (r *registry) holdAll() (release func()) {
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

// held counts the pulls that are kept.
func (r *registry) held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.inFlight)
}

// requests counts the requests for a manifest.
func (r *registry) requests(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.asked[name])
}

// pulls tells when an image was pulled: engines ask more than once for each pull, but not seconds later.
func (r *registry) pulls(name string) (begun []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last time.Time
	for _, at := range r.asked[name] {
		if at.Sub(last) > 3*time.Second {
			begun = append(begun, at)
		}
		last = at
	}
	return begun
}

// mayRead says whether user ("" is anyone) may have a repository.
func (r *registry) mayRead(user, repository string) bool {
	owner, private := strings.CutPrefix(repository, "private/")
	owner, _, _ = strings.Cut(owner, "/")
	return !private || user == owner
}

// ServeHTTP answers /v2/, manifests, blobs, and /token.
func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	user, pass, given := q.BasicAuth()
	if given && pass != password(user) {
		user = ""
	}
	if q.URL.Path == "/token" {
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "of-" + user})
		return
	}
	if !r.basic {
		var token string
		token, given = strings.CutPrefix(q.Header.Get("Authorization"), "Bearer of-")
		user = token
	}
	repository, kind, reference := split(strings.TrimPrefix(q.URL.Path, "/v2/"))
	if !given || r.basic && user == "" || repository != "" && !r.mayRead(user, repository) {
		challenge := `Basic realm="test"`
		if !r.basic {
			challenge = fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, r.addr)
		}
		w.Header().Set("WWW-Authenticate", challenge)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return
	}
	switch kind {
	case "":
	case "manifests":
		r.serveManifest(w, q, repository+":"+reference)
	default:
		r.serveBlob(w, q, repository, reference)
	}
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

func (r *registry) serveManifest(w http.ResponseWriter, q *http.Request, name string) {
	r.mu.Lock()
	r.asked[name] = append(r.asked[name], time.Now())
	manifest := r.manifests[name]
	r.mu.Unlock()
	if manifest == nil {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
		return
	}
	w.Header().Set("Content-Type", manifestType)
	w.Header().Set("Docker-Content-Digest", digestOf(manifest))
	w.Header().Set("Content-Length", strconv.Itoa(len(manifest)))
	if q.Method != http.MethodHead {
		_, _ = w.Write(manifest)
	}
}

func (r *registry) serveBlob(w http.ResponseWriter, q *http.Request, repository, digest string) {
	r.mu.Lock()
	data, hold := r.configs[digest], r.hold
	if data != nil && hold != nil {
		r.inFlight[repository] = true
	}
	r.mu.Unlock()
	switch {
	case digest == digestOf(r.program):
		data = r.program
	case data == nil:
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN", "blob unknown")
		return
	case hold != nil:
		select {
		case <-hold:
		case <-q.Context().Done():
		}
		r.mu.Lock()
		delete(r.inFlight, repository)
		r.mu.Unlock()
	}
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(data))
}
