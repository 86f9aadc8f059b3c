package containers

import (
	"fmt"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/engine"
)

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
	return &registrySpecs{keep: keep, prefix: convert.SpecPrefix(node), host: e.Host(), usable: keep != nil && e.Local(), held: map[string]string{}}
}

// during calls start while the engine finds the credential spec that the container of that name needs, if any.
func (r *registrySpecs) during(name string, spec *convert.CredentialSpec, start func() error) error {
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
