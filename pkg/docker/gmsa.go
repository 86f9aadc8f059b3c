package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/api/types/versions"
	"k8s.io/klog/v2"
)

// CredentialSpec is the content of a credential spec (windowsOptions.gmsaCredentialSpec) in a file of the engine.
type CredentialSpec struct{ Name, Content string }

// rawSpecs is API 1.40: the first whose engine takes a credential spec by itself (19.03). Older ones read a file in their directory
// CredentialSpecs while the container starts (moby daemon/oci_windows.go setWindowsCredentialSpec).
const rawSpecs = "1.40"

// credentialSpecs are the files of one agent by their prefix. Nothing in them is secret.
func (t Target) credentialSpecs() string { return "winkube-" + t.Node + "-" }

// credentialOption is what the engine is told about content, and the file that it needs for that.
func credentialOption(content, container string, t Target) (option string, file *CredentialSpec) {
	if !versions.LessThan(t.api(), rawSpecs) {
		return "credentialspec=raw://" + content, nil
	}
	file = &CredentialSpec{Name: t.credentialSpecs() + container + ".json", Content: content}
	return "credentialspec=file://" + file.Name, file
}

// startWith starts a container while the engine has its credential spec, if any. What an agent that was killed has left goes before.
func (e *Engine) startWith(ctx context.Context, id string, creation Creation) error {
	spec := creation.CredentialSpec
	if spec == nil {
		return e.start(ctx, id, creation.Name)
	}
	root, _ := e.root.Load().(string)
	if !e.local() || root == "" {
		return fmt.Errorf("cannot give container %s its credential spec: the engine at %s is older than 19.03 and reads it from its own disk; use it by its pipe, or a later one", creation.Name, e.host)
	}
	dir := filepath.Join(root, "CredentialSpecs")
	e.sweptSpecs.Do(func() { sweepSpecs(dir, Target{Node: e.cfg.Node}.credentialSpecs()) })
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, spec.Name), []byte(spec.Content), 0o644)); err != nil {
		return fmt.Errorf("cannot give container %s its credential spec: %w", creation.Name, err)
	}
	defer removeSpec(filepath.Join(dir, spec.Name))
	return e.start(ctx, id, creation.Name)
}

func sweepSpecs(dir, prefix string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.ErrorS(err, "Cannot look for old credential specs")
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			removeSpec(filepath.Join(dir, entry.Name()))
		}
	}
}

func removeSpec(file string) {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.ErrorS(err, "Cannot remove a credential spec", "file", file)
	}
}
