package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// release is an engine of one version, built from its module, together with containerd and runc.
type release struct {
	name   string // value of ENGINE
	module string // below hack/tools
	path   string // of the Go module
	// version is what the engine reports. A moby module does not know its version.
	version string
	// language is the module's Go version. A module without go.mod would be compiled as Go 1.16.
	language string
	graph    bool // stores images in a graph driver, overlay2, instead of containerd's store
	nftables bool // writes its rules with nft instead of iptables
}

func releases() []release {
	const docker, moby = "github.com/docker/docker", "github.com/moby/moby/v2"
	return []release{
		{name: "25", module: "dockerd-25", path: docker, version: "25.0.6", language: "go1.21", graph: true},
		{name: "28", module: "dockerd-28", path: docker, version: "28.5.2", language: "go1.24", graph: true},
		{name: "29", module: "dockerd-29", path: moby, version: "29.0.0-beta.24", language: "go1.26"},
		{name: "29-overlay2", module: "dockerd-29", path: moby, version: "29.0.0-beta.24", language: "go1.26", graph: true},
		{name: "29-nftables", module: "dockerd-29", path: moby, version: "29.0.0-beta.24", language: "go1.26", nftables: true},
	}
}

// Releases are the engines that a cluster can run besides Debian's, by the value of ENGINE.
func Releases() []string {
	var names []string
	for _, r := range releases() {
		names = append(names, r.name)
	}
	return names
}

// CheckRelease returns an error unless name is a value of ENGINE; "" is Debian's engine.
func CheckRelease(name string) error {
	if name == "" || slices.Contains(Releases(), name) {
		return nil
	}
	return fmt.Errorf("ENGINE: got %q, want one of %s, or nothing for Debian's engine", name, strings.Join(Releases(), ", "))
}

// DescribeRelease describes an engine, by its value of ENGINE.
func DescribeRelease(name string) string {
	for _, r := range releases() {
		if r.name != name {
			continue
		}
		if r.graph {
			return "Docker " + r.version + ", graph driver overlay2"
		}
		text := "Docker " + r.version + ", containerd's image store"
		if r.nftables {
			text += ", rules of nftables"
		}
		return text
	}
	return "Debian's Docker"
}

// release returns the release that Engine names; nil: Debian's.
func (c *Cluster) release() *release { return releaseOf(c.Engine) }

func releaseOf(name string) *release {
	all := releases()
	if i := slices.IndexFunc(all, func(r release) bool { return r.name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// tool returns the tool that builds the engine into its directory of Tools.
func (r release) tool() tool {
	return tool{
		module: r.module, dir: filepath.Join("engines", strings.TrimPrefix(r.module, "dockerd-")),
		packages: []string{r.path + "/cmd/dockerd", r.path + "/cmd/docker-proxy"}, names: []string{"dockerd", "docker-proxy"},
		ldflags: "-s -w -X " + r.path + "/dockerversion.Version=" + r.version,
		flags:   []string{"-tags=netgo osusergo static_build exclude_graphdriver_btrfs", "-gcflags=" + r.path + "/...=-lang=" + r.language},
	}
}

// containerd and runc belong to every built engine: engine 29 needs runc 1.2 or later, and containerd needs a shim of
// the same version.
var (
	containerd2 = tool{
		module: "containerd", dir: "engines/containerd",
		packages: []string{
			"github.com/containerd/containerd/v2/cmd/containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr",
		},
		names:   []string{"containerd", "containerd-shim-runc-v2", "ctr"},
		ldflags: "-s -w -X github.com/containerd/containerd/v2/version.Version=2.4.2",
		flags:   []string{"-tags=no_btrfs no_zfs netgo osusergo"},
	}
	runc = tool{
		module: "runc", dir: "engines/containerd", packages: []string{"github.com/opencontainers/runc"}, names: []string{"runc"},
		ldflags: "-s -w -X main.version=1.5.2", flags: []string{"-tags=seccomp netgo osusergo"}, cgo: true,
	}
)

// releaseFile records the running cluster's ENGINE. Down removes it.
func releaseFile() string { return filepath.Join(runDir, "engine") }

// runningRelease returns the running cluster's ENGINE: a process that is restarted without the variable in the
// environment must be of the same release.
func runningRelease() string {
	data, err := os.ReadFile(releaseFile())
	if err != nil {
		return ""
	}
	return string(data)
}

// upRelease builds ENGINE. It rejects one that does not exist or is not the running cluster's.
func (c *Cluster) upRelease(ctx context.Context) error {
	if err := CheckRelease(c.Engine); err != nil {
		return err
	}
	if c.Engine != "" && c.EngineAPI != "" {
		return errors.New("ENGINE cannot be combined with ENGINE_API, which imitates versions on Debian's engine: leave one out")
	}
	if have, err := os.ReadFile(releaseFile()); err == nil && string(have) != c.Engine {
		return fmt.Errorf("the cluster runs on %s, want %s: run make down, then try again", DescribeRelease(string(have)), DescribeRelease(c.Engine))
	}
	if r := c.release(); r != nil {
		if err := c.buildRelease(ctx, *r); err != nil {
			return err
		}
	}
	return os.WriteFile(releaseFile(), []byte(c.Engine), 0o644)
}

func (c *Cluster) buildRelease(ctx context.Context, r release) error {
	if err := c.logged(ctx, "packages-engine", c.Root, nil, "hack/ensure-packages.sh", "engine"); err != nil {
		return err
	}
	for _, t := range []tool{r.tool(), containerd2, runc} {
		if err := c.buildTool(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// programs returns the directories of the engine's programs, "" for Debian's. They come first in the PATH of engines.
func (c *Cluster) programs() string { return c.programsOf(c.release()) }

func (c *Cluster) programsOf(r *release) string {
	if r == nil {
		return ""
	}
	return filepath.Join(c.Tools, r.tool().dir) + ":" + filepath.Join(c.Tools, containerd2.dir)
}

// program returns the path of an engine's program: the built one, otherwise the machine's.
func (c *Cluster) program(name string) string { return programIn(c.programs(), name) }

func programIn(dirs, name string) string {
	for _, dir := range filepath.SplitList(dirs) {
		if path := filepath.Join(dir, name); isFile(path) {
			return path
		}
	}
	return system(name)
}

// programs is like the cluster's, for one host.
func (h *Host) programs() string {
	if h.engine != "" {
		return h.installed()
	}
	return h.cluster.programs()
}

// program is like the cluster's, for one host.
func (h *Host) program(name string) string { return programIn(h.programs(), name) }

// containerd2 reports whether the host's containerd is of version 2.
func (h *Host) containerd2() bool {
	if h.engine != "" {
		return h.engine != Debian
	}
	return h.cluster.Engine != ""
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// engineDir returns a directory for the engine's state. Each release has its own: a later one would otherwise reuse an
// earlier one's storage.
func (h *Host) engineDir(name string) string {
	if h.cluster.Engine == "" {
		return h.Dir(name)
	}
	return h.Dir(name + "-" + h.cluster.Engine)
}
