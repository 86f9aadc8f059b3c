package containers

import (
	"fmt"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/engine"
)

// registrySpecs keeps the credential specs of starting containers in this host's registry.
type registrySpecs struct {
	keep   func(prefix string, want map[string]string) error // Config.CredentialSpecs
	prefix string
	host   string // of the engine
	usable bool   // this host has a registry, and the engine reads it

	swept sync.Once
	mu    sync.Mutex
	held  map[string]string // contents by name
}

func newRegistrySpecs(node string, keep func(string, map[string]string) error, e *engine.Client) *registrySpecs {
	return &registrySpecs{keep: keep, prefix: convert.SpecPrefix(node), host: e.Host(), usable: keep != nil && e.Local(), held: map[string]string{}}
}

// during calls start while the registry holds the credential spec of the container named name, if it needs one.
func (r *registrySpecs) during(name string, spec *convert.CredentialSpec, start func() error) error {
	if spec == nil {
		return start()
	}
	if !r.usable {
		return fmt.Errorf("cannot give container %s its credential spec: the engine at %s is older than 19.03 and reads credential specs from its host's registry; connect to it through its pipe, or use a newer engine", name, r.host)
	}
	defer func() {
		if err := r.change(func(held map[string]string) { delete(held, spec.Name) }); err != nil {
			klog.ErrorS(err, "Cannot remove a credential spec from the registry; retrying with the next start of such a container", "name", spec.Name)
		}
	}()
	if err := r.change(func(held map[string]string) { held[spec.Name] = spec.Content }); err != nil {
		return fmt.Errorf("cannot give container %s its credential spec: %w", name, err)
	}
	return start()
}

// change updates this agent's specs in the registry. It removes all its other specs, such as those left by a killed agent.
func (r *registrySpecs) change(how func(held map[string]string)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	how(r.held)
	return r.keep(r.prefix, r.held)
}

// sweep removes, once, the specs left by a killed agent, even if the current engine needs no registry.
func (r *registrySpecs) sweep() {
	if !r.usable {
		return
	}
	r.swept.Do(func() {
		if err := r.change(func(map[string]string) {}); err != nil {
			klog.ErrorS(err, "Cannot remove old credential specs from the registry")
		}
	})
}
