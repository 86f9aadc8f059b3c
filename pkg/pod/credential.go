package pod

import (
	"cmp"
	"errors"

	"k8s.io/apimachinery/pkg/types"
)

// String hides everything but the server, so that a credential that is printed by accident gives nothing away.
func (c Credential) String() string {
	return "credential for " + cmp.Or(c.ServerAddress, "any registry")
}

// GoString is String, for %#v.
func (c Credential) GoString() string { return c.String() }

// SameLogin says whether a registry sees no difference.
func (c Credential) SameLogin(other Credential) bool {
	other.Source = c.Source
	return c == other
}

// Credential is one registry login that may be tried for a pull.
type Credential struct {
	Username, Password, Auth, Email, ServerAddress, IdentityToken, RegistryToken string
	// Source says whose it is. Logins that differ in nothing else are the same for a registry.
	Source CredentialSource `json:"-"`
}

// CredentialSource is where a Credential came from. The zero value is the node itself, so that every pod here may use it.
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
	FromServiceAccount SourceKind = "service account" // a plugin gave it for the account's token
)

// Login is a Credential and the images that it is for, as a key of a Docker config's auths names them: a registry, or also the
// beginning of a path in it. The registry may hold wildcards.
type Login struct {
	Server string
	Credential
}

// ErrRegistryUnavailable may be wrapped by an Images whose registry does not answer: the reason that users see is then
// RegistryUnavailable in place of ErrImagePull.
var ErrRegistryUnavailable = errors.New("RegistryUnavailable")
