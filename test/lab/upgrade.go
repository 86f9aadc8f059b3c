package lab

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Debian is the name of Debian's engine for InstallEngine. ENGINE has no name for it.
const Debian = "debian"

// enginePrograms are what a package of Docker or containerd brings. Shims find runc by name in the PATH that containerd
// gave them, as on a host where packages replace /usr/bin/runc.
var enginePrograms = []string{"dockerd", "docker-proxy", "containerd", "containerd-shim-runc-v2", "runc"}

// installed is the directory of the programs that InstallEngine has put on the host.
func (h *Host) installed() string { return h.Dir("engine") }

// InstallEngine replaces the host's engine as a package manager does: it stops dockerd and containerd, replaces their
// programs, and starts them again with the same state. Containers survive if LiveRestore is set. release is Debian or one
// of Releases. Nothing replaces a newer engine by an older one, which could not read its state: only Down ends an upgrade.
func (h *Host) InstallEngine(ctx context.Context, release string) error {
	c := h.cluster
	built := releaseOf(release)
	if built == nil && release != Debian {
		return fmt.Errorf("engine %q: want %s or one of %s", release, Debian, strings.Join(Releases(), ", "))
	}
	if err := c.BuildEngine(ctx, release); err != nil {
		return err
	}
	for _, name := range []string{"dockerd", "containerd"} {
		if err := h.Process(name).Stop(ctx); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(h.installed(), 0o755); err != nil {
		return err
	}
	for _, name := range enginePrograms {
		if err := replace(filepath.Join(h.installed(), name), programIn(c.programsOf(built), name)); err != nil {
			return fmt.Errorf("cannot install %s of engine %s on %s: %w", name, release, h.Name, err)
		}
	}
	h.engine = release
	return c.upEnginesOf(ctx, []*Host{h})
}

// BuildEngine builds the programs of one of Releases, unless they are up to date.
func (c *Cluster) BuildEngine(ctx context.Context, release string) error {
	if r := releaseOf(release); r != nil {
		return c.buildRelease(ctx, *r)
	}
	return nil
}

// EnginePrograms builds the programs of one of Releases, unless they are up to date, and returns their paths: what a package of
// Docker or containerd brings.
func (c *Cluster) EnginePrograms(ctx context.Context, release string) (paths []string, err error) {
	built := releaseOf(release)
	if built == nil {
		return nil, fmt.Errorf("engine %q: want one of %s", release, strings.Join(Releases(), ", "))
	}
	if err := c.buildRelease(ctx, *built); err != nil {
		return nil, err
	}
	for _, name := range enginePrograms {
		paths = append(paths, programIn(c.programsOf(built), name))
	}
	return paths, nil
}

// ConfigureEngine sets more of the engine's configuration, which applies at its next start.
func (h *Host) ConfigureEngine(ctx context.Context, more map[string]any) error {
	h.moreSettings = more
	return h.writeEngineFiles(ctx)
}

// replace copies a program over another, which may be running: it keeps its old file.
func replace(path, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o755); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// LoadImages loads the images of this repository that the host's engine lacks.
func (h *Host) LoadImages(ctx context.Context) error {
	return h.cluster.upImagesOf(ctx, []*Host{h})
}

// NetworkOptions returns the driver options of a network.
func (e *Engine) NetworkOptions(ctx context.Context, name string) (map[string]string, error) {
	var answer struct{ Options map[string]string }
	err := e.call(ctx, http.MethodGet, "/networks/"+url.PathEscape(name), nil, &answer)
	return answer.Options, err
}

// StorageDriver returns where the engine keeps images: a graph driver, or a snapshotter of containerd.
func (e *Engine) StorageDriver(ctx context.Context) (string, error) {
	var answer struct{ Driver string }
	err := e.call(ctx, http.MethodGet, "/info", nil, &answer)
	return answer.Driver, err
}
