// Package images gives access to the images of an engine: look up, pull, list, remove, and read their content.
//
//	name --Lookup, Pull--> pod.Image;   Docker --events--> Follow: invalidates cached answers
package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/client"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

// Config says how to pull images and which ones to keep.
type Config struct {
	OS       string        // of the node's containers: linux or windows
	Infra    string        // image of the sandbox, which is never collected; "": none
	Deadline time.Duration // a pull or an export without progress for this long is canceled
}

// Store accesses the images of one engine. All methods may be called concurrently.
type Store struct {
	engine *engine.Client
	node   identity.Node
	cfg    Config

	cache    cache
	accounts accountCache
}

var _ pod.Images = (*Store)(nil)

// New returns a Store of e. node owns the containers that read images.
func New(e *engine.Client, node identity.Node, cfg Config) *Store {
	return &Store{engine: e, node: node, cfg: cfg}
}

// pullablePrefix is the prefix of containerStatuses.imageID for an image that a registry knows by a digest; see identity.ImageIDPrefix.
const pullablePrefix = "docker-pullable://"

var imageID = regexp.MustCompile(`^(sha256:)?[0-9a-f]{64}$`)

// normal returns the full name to send to the engine: short names belong to docker.io, and a digest makes a tag meaningless. A full name is never
// mistaken for the beginning of an image's id.
func normal(name string) (string, error) {
	if imageID.MatchString(name) {
		return name, nil
	}
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		err = fmt.Errorf("couldn't parse image name %q: %w", name, err)
		return "", &engine.ApplyError{Reason: engine.ReasonBadImage, Message: err.Error(), Err: err}
	}
	return ref.String(), nil
}

// Lookup finds a present image by a name as in a pod's spec, or by id.
func (s *Store) Lookup(ctx context.Context, name string) (pod.Image, bool, error) {
	full, err := normal(name)
	if err != nil {
		return pod.Image{}, false, err
	}
	known, mark, ok := s.cache.look(full)
	if ok {
		return known, true, nil
	}
	var answer image.InspectResponse
	err = s.engine.Call(ctx, fmt.Sprintf("inspect image %q", name), func(ctx context.Context, c *client.Client) (err error) {
		answer, err = c.ImageInspect(ctx, full)
		return err
	})
	if cerrdefs.IsNotFound(err) {
		return pod.Image{}, false, nil
	}
	if err != nil {
		return pod.Image{}, false, err
	}
	out := pod.Image{ID: answer.ID, Ref: imageRef(full, answer.ID, answer.RepoDigests), OS: answer.Os, OSVersion: answer.OsVersion, Size: answer.Size}
	if answer.Config != nil {
		out.User = answer.Config.User
	}
	s.cache.found(full, out, mark)
	return out, true, nil
}

// imageRef returns the digest of the requested repository, or else the first.
func imageRef(name, id string, digests []string) string {
	var chosen string
	for _, digest := range digests {
		repository, _, ok := strings.Cut(digest, "@")
		if !ok || repository == "<none>" {
			continue
		}
		if chosen == "" {
			chosen = digest
		}
		have, err1 := reference.ParseNormalizedNamed(repository)
		want, err2 := reference.ParseNormalizedNamed(name)
		if err1 == nil && err2 == nil && have.Name() == want.Name() {
			chosen = digest
			break
		}
	}
	if chosen == "" {
		return identity.ImageIDPrefix + id
	}
	return pullablePrefix + chosen
}

// List lists the present images.
type List struct {
	IDs   []string
	Named []v1.ContainerImage // largest first, as Node.status.images shows them: digests before tags
}

// ListImages lists the present images. While Follow runs, it queries the engine only after an image was added, removed or renamed. If changed is
// false, the list is the one returned last, and must not be modified.
func (s *Store) ListImages(ctx context.Context) (list List, changed bool, err error) {
	stored, mark, ok := s.cache.get()
	if ok {
		return stored, false, nil
	}
	var all []image.Summary
	err = s.engine.Call(ctx, "list images", func(ctx context.Context, c *client.Client) (err error) {
		all, err = c.ImageList(ctx, image.ListOptions{})
		return err
	})
	if err != nil {
		return List{}, false, err
	}
	list = listed(all)
	s.cache.put(list, mark)
	return list, true, nil
}

func listed(all []image.Summary) (list List) {
	for _, summary := range all {
		list.IDs = append(list.IDs, summary.ID)
		if names := namesOf(summary); len(names) > 0 {
			list.Named = append(list.Named, v1.ContainerImage{Names: names, SizeBytes: summary.Size})
		}
	}
	slices.SortFunc(list.Named, func(a, b v1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), slices.Compare(a.Names, b.Names))
	})
	return list
}

// Pull fetches name, trying creds in order (none: anonymous). It returns the result of Lookup and the index in creds of the one that worked, or -1.
// It fails when the engine reports no progress for Config.Deadline. A registry that does not answer is pod.ErrRegistryUnavailable; the remaining
// creds are then not tried.
func (s *Store) Pull(ctx context.Context, name string, creds []pod.Credential) (img pod.Image, used int, err error) {
	full, err := normal(name)
	if err != nil {
		return pod.Image{}, -1, err
	}
	used = 0
	if len(creds) == 0 {
		creds, used = []pod.Credential{{}}, -1
	}
	var failures []error
	for i, cred := range creds {
		err := s.pull(ctx, full, cred)
		s.cache.change() // the event may come later
		if err == nil {
			img, err = s.pulled(ctx, name)
			return img, used + i, err
		}
		if !slices.ContainsFunc(failures, func(f error) bool { return f.Error() == err.Error() }) {
			failures = append(failures, err)
		}
		if errors.Is(err, pod.ErrRegistryUnavailable) || ctx.Err() != nil || errors.As(err, new(engine.NoAnswer)) {
			break
		}
	}
	return pod.Image{}, -1, fmt.Errorf("cannot pull image %q: %w", name, errors.Join(failures...))
}

// pulled checks the pulled image. The engine accepts an image of any system if the registry offers no choice.
func (s *Store) pulled(ctx context.Context, name string) (pod.Image, error) {
	img, ok, err := s.Lookup(ctx, name)
	switch {
	case err != nil:
		return pod.Image{}, err
	case !ok:
		return pod.Image{}, fmt.Errorf("cannot find image %q after its pull: the image is for another platform, or was removed", name)
	case img.OS != "" && img.OS != s.cfg.OS:
		return pod.Image{}, fmt.Errorf("cannot use image %q: it is for %s, and this node runs %s", name, img.OS, s.cfg.OS)
	}
	return img, nil
}

// pull makes one attempt.
func (s *Store) pull(ctx context.Context, full string, cred pod.Credential) error {
	auth, err := authHeader(cred)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := s.cfg.Deadline
	timer := s.engine.Clock().AfterFunc(limit, func() { cancel(noProgress{engine.NoAnswer{Limit: limit}}) })
	defer timer.Stop()
	err = func() error {
		c, err := s.engine.API(inner)
		if err != nil {
			return err
		}
		body, err := c.ImagePull(inner, full, image.PullOptions{RegistryAuth: auth})
		if err != nil {
			return err
		}
		defer body.Close()
		return follows(body, func() { timer.Reset(limit) })
	}()
	var stuck noProgress
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(context.Cause(inner), &stuck):
		return stuck
	}
	return registryError(err)
}

// noProgress is the cause when a pull is canceled for lack of progress.
type noProgress struct{ engine.NoAnswer }

func (n noProgress) Error() string { return fmt.Sprintf("no progress for %v", n.Limit) }

func (n noProgress) Unwrap() error { return n.NoAnswer }

// progress is one message of a pull.
type progress struct {
	ID       string          `json:"id"`
	Status   string          `json:"status"`
	Progress json.RawMessage `json:"progressDetail"`
	Error    string          `json:"error"`
	Detail   *struct {
		Message string `json:"message"`
	} `json:"errorDetail"`
}

// follows reads the messages of a pull until they end. It calls moved for each that differs from the previous one of its layer: the engine repeats
// messages while nothing happens.
func follows(body io.Reader, moved func()) error {
	last := map[string]string{}
	decoder := json.NewDecoder(body)
	for {
		var message progress
		err := decoder.Decode(&message)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the engine ended its report early: %w", err)
		}
		if message.Detail != nil && message.Detail.Message != "" {
			return errors.New(message.Detail.Message)
		}
		if message.Error != "" {
			return errors.New(message.Error)
		}
		if text := message.Status + string(message.Progress); last[message.ID] != text {
			last[message.ID] = text
			moved()
		}
	}
}

// authHeader encodes a login for the engine; "" is anonymous.
func authHeader(cred pod.Credential) (string, error) {
	if cred == (pod.Credential{}) {
		return "", nil
	}
	return registry.EncodeAuthConfig(registry.AuthConfig{
		Username: cred.Username, Password: cred.Password, Auth: cred.Auth, ServerAddress: cred.ServerAddress,
		IdentityToken: cred.IdentityToken, RegistryToken: cred.RegistryToken,
	})
}

// unreachable lists texts of Go's network and TLS errors, which the engine passes on.
var unreachable = []string{
	"dial tcp", "no such host", "connection refused", "connection reset", "i/o timeout", "TLS handshake timeout", "network is unreachable",
	"no route to host", "Client.Timeout exceeded", "server misbehaving", "Service Unavailable", "Bad Gateway", "Gateway Timeout",
}

// denied lists texts of refused logins. Engines with containerd's store pass on only the HTTP status.
var denied = []string{
	"unauthorized", "access denied", "no basic auth", "401 Unauthorized", "403 Forbidden", "insufficient_scope", "failed to authorize", "authorization failed",
}

// registryError makes the engine's report of a failed pull readable.
func registryError(err error) error {
	if client.IsErrConnectionFailed(err) {
		return err // the engine, not the registry
	}
	text := strings.TrimPrefix(err.Error(), "Error response from daemon: ")
	for _, words := range unreachable {
		if strings.Contains(text, words) {
			return fmt.Errorf("%w: %s", pod.ErrRegistryUnavailable, text)
		}
	}
	switch {
	case cerrdefs.IsUnauthorized(err), slices.ContainsFunc(denied, func(words string) bool { return strings.Contains(text, words) }):
		return fmt.Errorf("%s (the registry refuses this login; check the image's name and the pod's imagePullSecrets)", text)
	case strings.Contains(text, "no matching manifest for"):
		return fmt.Errorf("%s (the image exists, but not for this node's system, version and architecture)", text)
	case strings.Contains(text, "toomanyrequests"), strings.Contains(text, "429 Too Many Requests"):
		return fmt.Errorf("%s (the registry limits pulls; use an imagePullSecret or a mirror)", text)
	}
	return errors.New(text)
}

// Follow reads image events until ctx ends; while it is connected, cached answers stay valid until the next event. It reads all of them: they are
// rare, and their names differ between engines.
func (s *Store) Follow(ctx context.Context) {
	engine.Stream{
		Client: s.engine.API,
		Filter: filters.NewArgs(filters.Arg("type", string(events.ImageEventType))),
		Up:     func() { s.cache.follow(true) },
		Down:   func() { s.cache.follow(false) },
		Each:   func(events.Message) { s.cache.change() },
	}.Follow(ctx, s.engine)
}
