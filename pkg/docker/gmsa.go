package docker

import (
	"fmt"
	"sync"

	"github.com/docker/docker/api/types/versions"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// CredentialSpec is the content of a credential spec (windowsOptions.gmsaCredentialSpec), and the name by which the engine finds it.
type CredentialSpec struct{ Name, Content string }

// rawSpecs is API 1.40: the first whose engine takes a credential spec by itself (19.03, moby/moby#38777). Older ones read it from the
// registry of their host while the container starts (moby daemon/oci_windows.go readCredentialSpecRegistry).
const rawSpecs = "1.40"

// specPrefix is what the names of one agent's credential specs begin with. A node's name has no underscore.
func specPrefix(node string) string { return "winkube_" + node + "_" }

// credentialOption is what the engine is told about content, and what the registry must have for that.
func credentialOption(content, container string, t Target) (option string, spec *CredentialSpec) {
	if !versions.LessThan(t.api(), rawSpecs) {
		return "credentialspec=raw://" + content, nil
	}
	spec = &CredentialSpec{Name: specPrefix(t.Node) + container, Content: content}
	return "credentialspec=registry://" + spec.Name, spec
}

// registrySpecs keeps in this host's registry the credential specs of the containers that are starting.
type registrySpecs struct {
	keep   func(prefix string, want map[string]string) error // Config.CredentialSpecs
	prefix string
	host   string // of the engine
	usable bool   // there is a registry, and it is the one that the engine reads

	swept sync.Once
	mu    sync.Mutex
	held  map[string]string // contents by name
}

func newRegistrySpecs(node string, keep func(string, map[string]string) error, e *engine.Client) *registrySpecs {
	return &registrySpecs{keep: keep, prefix: specPrefix(node), host: e.Host(), usable: keep != nil && e.Local(), held: map[string]string{}}
}

// during calls start while the engine finds the credential spec that the container of that name needs, if any.
func (r *registrySpecs) during(name string, spec *CredentialSpec, start func() error) error {
	if spec == nil {
		return start()
	}
	if !r.usable {
		return fmt.Errorf("cannot give container %s its credential spec: the engine at %s is older than 19.03 and reads it from the registry of its own host; use it by its pipe, or a later one", name, r.host)
	}
	defer func() {
		if err := r.change(func(held map[string]string) { delete(held, spec.Name) }); err != nil {
			klog.ErrorS(err, "Cannot remove a credential spec; it goes with the next one", "name", spec.Name)
		}
	}()
	if err := r.change(func(held map[string]string) { held[spec.Name] = spec.Content }); err != nil {
		return fmt.Errorf("cannot give container %s its credential spec: %w", name, err)
	}
	return start()
}

// change changes what the registry has of this agent. It has nothing else afterwards: what an agent that was killed has left goes.
func (r *registrySpecs) change(how func(held map[string]string)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	how(r.held)
	return r.keep(r.prefix, r.held)
}

// sweep removes, once, what an agent that was killed has left, also where the engine has become one that needs no registry.
func (r *registrySpecs) sweep() {
	if !r.usable {
		return
	}
	r.swept.Do(func() {
		if err := r.change(func(map[string]string) {}); err != nil {
			klog.ErrorS(err, "Cannot look for old credential specs")
		}
	})
}
