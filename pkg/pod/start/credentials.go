package start

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// hubAddress is the server address that engines expect in a login for Docker Hub.
const hubAddress = "https://index.docker.io/v1/"

// dockerConfigEntry is the JSON of one login in .dockercfg and .docker/config.json.
type dockerConfigEntry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Email         string `json:"email"`
	Auth          string `json:"auth"` // base64 of username:password; takes precedence
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// secretLogins extracts the logins from an image pull secret (types kubernetes.io/dockerconfigjson and kubernetes.io/dockercfg). It skips
// unreadable entries and names them in the error, never with their contents.
func secretLogins(secret *v1.Secret) ([]pod.Login, error) {
	var logins []pod.Login
	var err error
	key := v1.DockerConfigJsonKey
	switch secret.Type {
	case v1.SecretTypeDockerConfigJson:
		logins, err = dockerConfigLogins(secret.Data[key])
	case v1.SecretTypeDockercfg:
		key = v1.DockerConfigKey
		var entries map[string]json.RawMessage
		if json.Unmarshal(secret.Data[key], &entries) != nil {
			err = errNoDockerConfig
		}
		if err == nil {
			logins, err = entryLogins(entries)
		}
	default:
		return nil, fmt.Errorf("type is %q; want %q or %q", secret.Type, v1.SecretTypeDockerConfigJson, v1.SecretTypeDockercfg)
	}
	for i := range logins {
		logins[i].Source = pod.CredentialSource{Kind: pod.FromSecret, Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID}
	}
	if err != nil {
		err = fmt.Errorf("key %s: %w", key, err)
	}
	return logins, err
}

var errNoDockerConfig = errors.New("it is not a Docker config in JSON")

// dockerConfigLogins extracts the logins from a .docker/config.json, like secretLogins.
func dockerConfigLogins(data []byte) ([]pod.Login, error) {
	var file struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	if json.Unmarshal(data, &file) != nil {
		return nil, errNoDockerConfig
	}
	return entryLogins(file.Auths)
}

func entryLogins(entries map[string]json.RawMessage) ([]pod.Login, error) {
	var logins []pod.Login
	var errs []error
	for _, server := range slices.Sorted(maps.Keys(entries)) {
		cred, err := parseLogin(entries[server])
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %q: %w", server, err))
			continue
		}
		logins = append(logins, pod.Login{Server: server, Credential: cred})
	}
	return logins, errors.Join(errs...)
}

func parseLogin(raw json.RawMessage) (pod.Credential, error) {
	var e dockerConfigEntry
	if json.Unmarshal(raw, &e) != nil {
		return pod.Credential{}, errors.New("want an object with username and password, or auth")
	}
	cred := pod.Credential{Username: e.Username, Password: e.Password, Email: e.Email, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
	if e.Auth == "" {
		return cred, nil
	}
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(e.Auth), "="))
	user, password, ok := strings.Cut(string(data), ":")
	if err != nil || !ok {
		return pod.Credential{}, errors.New("auth must be base64 of username:password")
	}
	cred.Username, cred.Password = user, password
	return cred, nil
}

// credentialsFor selects the logins for an image, the most specific first. name must be normalized (docker.io/library/busybox).
func credentialsFor(name reference.Named, logins []pod.Login) []pod.Credential {
	fitting := slices.DeleteFunc(slices.Clone(logins), func(l pod.Login) bool { return !podspec.ImageMatches(l.Server, name.Name()) })
	slices.SortStableFunc(fitting, func(a, b pod.Login) int {
		aHost, aPath := podspec.SplitServer(a.Server)
		bHost, bPath := podspec.SplitServer(b.Server)
		return cmp.Or(cmp.Compare(len(bPath), len(aPath)), cmp.Compare(bPath, aPath),
			cmp.Compare(strings.Count(aHost, "*"), strings.Count(bHost, "*")), cmp.Compare(bHost, aHost))
	})
	address := podspec.HubName(reference.Domain(name))
	if address == podspec.DockerHub {
		address = hubAddress
	}
	var out []pod.Credential
	for _, l := range fitting {
		l.Credential.ServerAddress = address
		if !slices.ContainsFunc(out, l.SameLogin) {
			out = append(out, l.Credential)
		}
	}
	return out
}
