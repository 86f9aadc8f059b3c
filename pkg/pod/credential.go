package pod

import (
	"cmp"
	"errors"

	"k8s.io/apimachinery/pkg/types"
)

// String shows only the server, so that a log line or error cannot leak the secret.
func (c Credential) String() string {
	return "credential for " + cmp.Or(c.ServerAddress, "any registry")
}

// GoString is String, for %#v.
func (c Credential) GoString() string { return c.String() }

// SameLogin reports whether a registry sees both as the same login: only Source may differ.
func (c Credential) SameLogin(other Credential) bool {
	other.Source = c.Source
	return c == other
}

// Credential is one registry login that may be tried for a pull.
type Credential struct {
	Username, Password, Auth, Email, ServerAddress, IdentityToken, RegistryToken string
	// Source is the credential's owner. A registry cannot tell apart logins that differ only in Source.
	Source CredentialSource `json:"-"`
}

// CredentialSource is where a Credential came from. The zero value is the node itself: every pod on the node may use it.
type CredentialSource struct {
	Kind            SourceKind
	Namespace, Name string
	UID             types.UID
}

// SourceKind is the kind of object that a Credential belongs to; "" is the node.
type SourceKind string

// Kinds of sources.
const (
	FromSecret         SourceKind = "secret"          // an imagePullSecret
	FromServiceAccount SourceKind = "service account" // from a plugin, for the account's token
)

// Login is a Credential with the images that it applies to. Server has the form of a key of auths in a Docker config: a registry,
// optionally with a path prefix. The registry may contain wildcards.
type Login struct {
	Server string
	Credential
}

// ErrRegistryUnavailable is wrapped by the errors of an Images whose registry does not answer. Users then see the reason
// RegistryUnavailable instead of ErrImagePull.
var ErrRegistryUnavailable = errors.New("RegistryUnavailable")
