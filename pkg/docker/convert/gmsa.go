package convert

import "github.com/docker/docker/api/types/versions"

// CredentialSpec is the content of a credential spec (windowsOptions.gmsaCredentialSpec), and the name by which the engine finds it.
type CredentialSpec struct{ Name, Content string }

// rawSpecs is API 1.40: the first whose engine takes a credential spec by itself (19.03, moby/moby#38777). Older ones read it from the
// registry of their host while the container starts (moby daemon/oci_windows.go readCredentialSpecRegistry).
const rawSpecs = "1.40"

// SpecPrefix is what the names of one agent's credential specs begin with. A node's name has no underscore.
func SpecPrefix(node string) string { return "winkube_" + node + "_" }

// credentialOption is what the engine is told about content, and what the registry must have for that.
func credentialOption(content, container string, t Target) (option string, spec *CredentialSpec) {
	if !versions.LessThan(t.api(), rawSpecs) {
		return "credentialspec=raw://" + content, nil
	}
	spec = &CredentialSpec{Name: SpecPrefix(t.Node) + container, Content: content}
	return "credentialspec=registry://" + spec.Name, spec
}
