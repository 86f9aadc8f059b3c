package podspec

import (
	"fmt"
	"net"
	"path"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
)

// ImageName is a parsed image name, and the form for the engine (with a tag or digest).
type ImageName struct {
	Named reference.Named
	Full  string
}

// ParseImage adds the tag latest if image has neither tag nor digest. It leaves the name otherwise unchanged.
func ParseImage(image string) (ImageName, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ImageName{}, fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	if reference.IsNameOnly(named) {
		image += ":latest"
		named = reference.TagNameOnly(named)
	}
	return ImageName{Named: named, Full: image}, nil
}

// PullPolicy is the container's policy, or the API server's default for it.
func PullPolicy(container *v1.Container, name ImageName) v1.PullPolicy {
	if container.ImagePullPolicy != "" {
		return container.ImagePullPolicy
	}
	if tagged, ok := name.Named.(reference.Tagged); ok && tagged.Tag() == "latest" {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// DockerHub is the canonical name of Docker Hub in image references and logins.
const DockerHub = "docker.io"

// SplitServer splits the key of a login: a host or URL, optionally with a path prefix. The host may contain * and ? within labels. Docker
// Hub's names all become docker.io.
func SplitServer(server string) (host, prefix string) {
	server = strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")
	host, prefix, _ = strings.Cut(server, "/")
	for _, api := range []string{"v1", "v2"} { // the registry API's own paths refer to the whole host
		if prefix == api {
			prefix = ""
		}
		prefix = strings.TrimPrefix(prefix, api+"/")
	}
	return HubName(host), prefix
}

// HubName returns a registry's canonical name: Docker Hub has several names.
func HubName(host string) string {
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return DockerHub
	}
	return host
}

// ImageMatches reports whether image, a name with registry and without tag, matches pattern: a registry, whose labels may contain
// wildcards, optionally with a path prefix. Logins and matchImages of credential plugins use this rule of upstream.
func ImageMatches(pattern, image string) bool {
	wantHost, wantPath := SplitServer(pattern)
	host, repository, _ := strings.Cut(image, "/")
	return strings.HasPrefix(repository, wantPath) && hostMatches(wantHost, HubName(host))
}

// hostMatches compares hosts label by label. Labels of pattern may contain wildcards, which never match a dot. Ports must be equal.
func hostMatches(pattern, host string) bool {
	patternName, patternPort := splitPort(pattern)
	name, port := splitPort(host)
	if patternPort != port {
		return false
	}
	want, have := strings.Split(patternName, "."), strings.Split(name, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitPort(host string) (name, port string) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		return host, ""
	}
	return name, port
}
