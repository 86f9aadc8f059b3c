package pod

import (
	"cmp"
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
