package podspec

import (
	"fmt"
	"net"
	"path"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
)

// ImageName is what a spec's image means: parsed, and as the engine is asked for it (with a tag or digest).
type ImageName struct {
	Named reference.Named
	Full  string
}

// ParseImage adds the tag latest where image has neither tag nor digest. The name is otherwise left as written.
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

// PullPolicy is the container's, or what the API server would have put there.
func PullPolicy(container *v1.Container, name ImageName) v1.PullPolicy {
	if container.ImagePullPolicy != "" {
		return container.ImagePullPolicy
	}
	if tagged, ok := name.Named.(reference.Tagged); ok && tagged.Tag() == "latest" {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// DockerHub is the name under which image references and logins of Docker Hub meet.
const DockerHub = "docker.io"

// SplitServer takes apart the key of a login: a host, a URL, or either with the beginning of a path. The host may hold * and ? within
// labels; Docker Hub's many names are docker.io.
func SplitServer(server string) (host, prefix string) {
	server = strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")
	host, prefix, _ = strings.Cut(server, "/")
	for _, api := range []string{"v1", "v2"} { // the registry API's own paths mean the whole host
		if prefix == api {
			prefix = ""
		}
		prefix = strings.TrimPrefix(prefix, api+"/")
	}
	return HubName(host), prefix
}

// HubName is the registry's one name: Docker Hub has several.
func HubName(host string) string {
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return DockerHub
	}
	return host
}

// ImageMatches says whether image, a name with registry and without tag, is one of those that pattern means: a registry, whose labels
// may hold wildcards, and perhaps the beginning of a path. It is upstream's rule for logins and for matchImages of credential plugins.
func ImageMatches(pattern, image string) bool {
	wantHost, wantPath := SplitServer(pattern)
	host, repository, _ := strings.Cut(image, "/")
	return strings.HasPrefix(repository, wantPath) && hostMatches(wantHost, HubName(host))
}

// hostMatches compares hosts label by label; a label of pattern may hold wildcards, which never reach over a dot. Ports must be equal.
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
