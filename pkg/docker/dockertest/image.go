package dockertest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
)

// Image is one image of the engine. Names have the form of a pod's spec; the engine adds registry and tag.
type Image struct {
	ID         string // "": generated
	Names      []string
	Digests    []string // repository@sha256:...
	Size       int64
	User       string
	OS         string // "": the engine's
	OSVersion  string
	Entrypoint []string
	Cmd        []string
	Env        []string
	// Config is the rest of the image's container configuration; nil: empty.
	Config *container.Config
	Files  map[string]string // by absolute path: content, or "-> target" for a symbolic link
}

// Remote is an image that can be pulled.
type Remote struct {
	Image              Image
	Username, Password string   // "": no login needed
	Messages           []string // JSON of the progress messages before success
	Stall              bool     // sends nothing after the Messages
}

// AddImage puts an image into the store and returns its id.
func (e *Engine) AddImage(img Image) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addImage(img)
}

func (e *Engine) addImage(img Image) string {
	if img.ID == "" {
		img.ID = "sha256:" + e.nextID()
	}
	for i, name := range img.Names {
		img.Names[i] = familiar(name)
	}
	for _, other := range e.images {
		other.Names = slices.DeleteFunc(other.Names, func(name string) bool { return slices.Contains(img.Names, name) })
	}
	e.images[img.ID] = &img
	e.tell(events.ImageEventType, events.ActionPull, events.Actor{ID: img.ID})
	return img.ID
}

// AddRemote adds an image to the registry under name.
func (e *Engine) AddRemote(name string, remote Remote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remotes[familiar(name)] = remote
}

// familiar is the form in which the engine shows names: without docker.io/library, with a tag.
func familiar(name string) string {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return name
	}
	return reference.FamiliarString(ref)
}

func (e *Engine) findImage(name string) *Image {
	if img := e.images[name]; img != nil {
		return img
	}
	full := familiar(name)
	for id, img := range e.images {
		short := strings.TrimPrefix(id, "sha256:")
		if slices.Contains(img.Names, full) || slices.Contains(e.opts.digests(img), full) || len(name) >= 4 && strings.HasPrefix(short, strings.TrimPrefix(name, "sha256:")) {
			return img
		}
	}
	return nil
}

func (e imageAPI) listImages(w http.ResponseWriter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []image.Summary{}
	for _, img := range e.images {
		list = append(list, image.Summary{ID: img.ID, RepoTags: orNone(img.Names), RepoDigests: e.opts.digests(img), Size: img.Size})
	}
	slices.SortFunc(list, func(a, b image.Summary) int { return strings.Compare(a.ID, b.ID) })
	answer(w, http.StatusOK, list)
}

func orNone(names []string) []string {
	if len(names) == 0 {
		return []string{"<none>:<none>"}
	}
	return names
}

func (e imageAPI) inspectImage(w http.ResponseWriter, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	img := e.findImage(name)
	if img == nil {
		refuse(w, http.StatusNotFound, "No such image: %s", name)
		return
	}
	body := map[string]any{
		"Id": img.ID, "RepoTags": img.Names, "RepoDigests": e.opts.digests(img), "Size": img.Size, "Os": cmp.Or(img.OS, e.opts.OS), "OsVersion": img.OSVersion,
		"Architecture": "amd64", "Config": img.config(),
	}
	if e.opts.Snapshotter != "" {
		body["GraphDriver"] = map[string]any{"Name": e.opts.Snapshotter, "Data": nil}
	}
	answer(w, http.StatusOK, body)
}

// digests are the digests of an image. In containerd's store an image always has the digest of its manifest, which is its id.
func (o Options) digests(img *Image) []string {
	if o.Snapshotter == "" {
		return img.Digests
	}
	all := slices.Clone(img.Digests)
	for _, name := range img.Names {
		ref, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			continue
		}
		if digest := reference.FamiliarName(ref) + "@" + img.ID; !slices.Contains(all, digest) {
			all = append(all, digest)
		}
	}
	return all
}

func (e imageAPI) removeImage(w http.ResponseWriter, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	img := e.findImage(name)
	if img == nil {
		refuse(w, http.StatusNotFound, "No such image: %s", name)
		return
	}
	byID := strings.TrimPrefix(img.ID, "sha256:") == strings.TrimPrefix(name, "sha256:")
	names := len(img.Names) + len(img.Digests)
	if byID && len(img.Names) > 1 {
		refuse(w, http.StatusConflict, "conflict: unable to delete %s (must be forced) - image is referenced in multiple repositories", img.ID)
		return
	}
	if !byID && names > 1 {
		is := func(n string) bool { return n == familiar(name) }
		img.Names, img.Digests = slices.DeleteFunc(img.Names, is), slices.DeleteFunc(img.Digests, is)
		e.tell(events.ImageEventType, events.ActionUnTag, events.Actor{ID: img.ID})
		answer(w, http.StatusOK, []map[string]string{{"Untagged": familiar(name)}})
		return
	}
	for _, b := range e.containers {
		if b.image == img {
			refuse(w, http.StatusConflict, "conflict: unable to remove repository reference %q (must force) - container %s is using its referenced image %s", name, b.id[:12], img.ID)
			return
		}
	}
	delete(e.images, img.ID)
	e.tell(events.ImageEventType, events.ActionDelete, events.Actor{ID: img.ID})
	answer(w, http.StatusOK, []map[string]string{{"Deleted": img.ID}})
}

func (e imageAPI) pullImage(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("fromImage")
	if tag := r.URL.Query().Get("tag"); strings.HasPrefix(tag, "sha256:") {
		name += "@" + tag
	} else if tag != "" {
		name += ":" + tag
	}
	auth, err := registry.DecodeAuthConfig(r.Header.Get(registry.AuthHeader))
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	e.mu.Lock()
	remote, ok := e.remotes[familiar(name)]
	down := e.down
	e.mu.Unlock()
	repository, _, _ := strings.Cut(familiar(name), ":")
	switch {
	case !ok:
		refuse(w, http.StatusNotFound, "pull access denied for %s, repository does not exist or may require 'docker login': denied: requested access to the resource is denied", repository)
		return
	case remote.Username != "" && (auth.Username != remote.Username || auth.Password != remote.Password):
		refuse(w, http.StatusInternalServerError, "Head \"https://registry/v2/%s/manifests/latest\": unauthorized: authentication required", repository)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for _, message := range append([]string{fmt.Sprintf(`{"status":"Pulling from %s","id":"latest"}`, repository)}, remote.Messages...) {
		_, _ = fmt.Fprintln(w, message)
		_ = http.NewResponseController(w).Flush()
		var read struct{ Error string }
		if json.Unmarshal([]byte(message), &read) == nil && read.Error != "" {
			return
		}
	}
	if remote.Stall {
		select {
		case <-r.Context().Done():
		case <-down:
		}
		return
	}
	img := remote.Image
	if !strings.Contains(name, "@") {
		img.Names = append(slices.Clone(img.Names), name)
	}
	e.mu.Lock()
	e.addImage(img)
	e.mu.Unlock()
	_, _ = fmt.Fprintf(w, "{\"status\":\"Status: Downloaded newer image for %s\"}\n", name)
}
