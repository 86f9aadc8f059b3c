package docker

import (
	"context"
	"fmt"
	"sync"

	"github.com/docker/docker/api/types/versions"
	"k8s.io/klog/v2"
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

// heldSpecs are the credential specs of containers that start just now, by name.
type heldSpecs struct {
	mu     sync.Mutex
	byName map[string]string
}

// startWith starts a container while the engine finds its credential spec, if any.
func (e *Engine) startWith(ctx context.Context, id string, creation Creation) error {
	spec := creation.CredentialSpec
	if spec == nil {
		return e.start(ctx, id, creation.Name)
	}
	if e.cfg.CredentialSpecs == nil || !e.local() {
		return fmt.Errorf("cannot give container %s its credential spec: the engine at %s is older than 19.03 and reads it from the registry of its own host; use it by its pipe, or a later one", creation.Name, e.host)
	}
	defer func() {
		if err := e.holdSpecs(func(held map[string]string) { delete(held, spec.Name) }); err != nil {
			klog.ErrorS(err, "Cannot remove a credential spec; it goes with the next one", "name", spec.Name)
		}
	}()
	if err := e.holdSpecs(func(held map[string]string) { held[spec.Name] = spec.Content }); err != nil {
		return fmt.Errorf("cannot give container %s its credential spec: %w", creation.Name, err)
	}
	return e.start(ctx, id, creation.Name)
}

// holdSpecs changes what the registry has of this agent. It has nothing else afterwards: what an agent that was killed has left goes.
func (e *Engine) holdSpecs(change func(held map[string]string)) error {
	e.specs.mu.Lock()
	defer e.specs.mu.Unlock()
	if e.specs.byName == nil {
		e.specs.byName = map[string]string{}
	}
	change(e.specs.byName)
	return e.cfg.CredentialSpecs(specPrefix(e.cfg.Node), e.specs.byName)
}

// sweepSpecs removes, once, what an agent that was killed has left, also where the engine has become one that needs no registry.
func (e *Engine) sweepSpecs() {
	if e.cfg.CredentialSpecs == nil || !e.local() {
		return
	}
	e.specsSwept.Do(func() {
		if err := e.holdSpecs(func(map[string]string) {}); err != nil {
			klog.ErrorS(err, "Cannot look for old credential specs")
		}
	})
}
