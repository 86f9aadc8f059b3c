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

// during calls start while the registry has the credential spec that the container of that name needs, if any.
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

// change changes which specs of this agent the registry has. It removes all others of it: those that an agent that was killed has left.
func (r *registrySpecs) change(how func(held map[string]string)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	how(r.held)
	return r.keep(r.prefix, r.held)
}

// sweep removes, once, what an agent that was killed has left, even if the engine has since become one that needs no registry.
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
