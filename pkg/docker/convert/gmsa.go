package convert

import "github.com/docker/docker/api/types/versions"

// CredentialSpec is the content of a credential spec (windowsOptions.gmsaCredentialSpec), and the name by which the engine finds it.
type CredentialSpec struct{ Name, Content string }

// rawSpecs is API 1.40, the first whose engine accepts a credential spec directly (19.03, moby/moby#38777). Older ones read it from their host's
// registry while the container starts (moby daemon/oci_windows.go readCredentialSpecRegistry).
const rawSpecs = "1.40"

// SpecPrefix is the prefix of the names of one agent's credential specs. A node's name has no underscore.
func SpecPrefix(node string) string { return "winkube_" + node + "_" }

// credentialOption returns the engine's security option for content, and the registry entry that it requires.
func credentialOption(content, container string, t Target) (option string, spec *CredentialSpec) {
	if !versions.LessThan(t.api(), rawSpecs) {
		return "credentialspec=raw://" + content, nil
	}
	spec = &CredentialSpec{Name: SpecPrefix(t.Node) + container, Content: content}
	return "credentialspec=registry://" + spec.Name, spec
}
