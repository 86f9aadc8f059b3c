package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const (
	debianRelease = "bookworm"
	debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// debianPackages are packages whose programs tests call inside agnhost.
var debianPackages = []string{"curl", "dnsutils", "ethtool", "iperf", "iproute2", "netcat-openbsd", "procps"}

// debianUsers are the users and groups for the test of groups that an image defines.
const (
	debianUsers  = "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"
	debianGroups = "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
)

// debianRoot builds the file system of agnhost and similar images, once per set of packages.
func (m *maker) debianRoot(ctx context.Context) (layer, error) {
	key := sum([]byte(strings.Join(debianPackages, " ") + debianUsers + debianGroups))[:12]
	file := filepath.Join(m.dir, "root-debian-"+debianRelease+"-"+key+".tar")
	if _, err := os.Stat(file); err == nil {
		return layerOf(file)
	}
	if err := m.ensure(ctx, map[string]string{"debootstrap": "debootstrap"}); err != nil {
		return layer{}, err
	}
	mirror, err := debianMirror(ctx)
	if err != nil {
		return layer{}, err
	}
	root := filepath.Join(m.dir, "debian.root")
	if err := os.RemoveAll(root); err != nil {
		return layer{}, err
	}
	defer os.RemoveAll(root)
	if err := m.cluster.Logged(ctx, "image-debian", m.dir, nil, "debootstrap", "--variant=minbase",
		"--include="+strings.Join(debianPackages, ","), debianRelease, root, mirror); err != nil {
		return layer{}, err
	}
	for name, text := range map[string]string{"etc/passwd": debianUsers, "etc/group": debianGroups} {
		if err := appendTo(filepath.Join(root, name), text); err != nil {
			return layer{}, err
		}
	}
	// Files that no test reads, some with names of the build machine.
	for _, pattern := range []string{
		"etc/hostname", "etc/resolv.conf", "var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*", "usr/share/doc/*", "usr/share/man/*",
		"usr/share/locale/*", "usr/share/info/*", "usr/share/perl/*", "dev/*",
	} {
		if err := removeAll(filepath.Join(root, pattern)); err != nil {
			return layer{}, err
		}
	}
	return m.pack(ctx, root, file)
}

// pack creates a layer from a directory: sorted, without times.
func (m *maker) pack(ctx context.Context, root, file string) (layer, error) {
	partial := file + ".partial"
	defer os.Remove(partial)
	if err := m.cluster.Logged(ctx, "image-pack", m.dir, nil, "tar", "--sort=name", "--mtime=@0", "--numeric-owner", "--format=pax",
		"--pax-option=delete=atime,delete=ctime", "-C", root, "-cf", partial, "."); err != nil {
		return layer{}, err
	}
	if err := os.Rename(partial, file); err != nil {
		return layer{}, err
	}
	return layerOf(file)
}

// busyboxSettings differ from busybox's defaults. DI_ENV_HACK makes the shell keep variables whose names are not valid
// in shell. Upstream's shell keeps them; Debian's binary and the defaults do not.
var busyboxSettings = []string{"CONFIG_STATIC=y", "CONFIG_FEATURE_DI_ENV_HACK=y", "CONFIG_ASH_RANDOM_SUPPORT=y", "# CONFIG_TC is not set"}

// busyboxProgram builds busybox from Debian's source package, once per set of settings. The program itself lists its
// links.
func (m *maker) busyboxProgram(ctx context.Context) (program []byte, links []string, err error) {
	file := filepath.Join(m.dir, "busybox-"+sum([]byte(strings.Join(busyboxSettings, "\n")))[:12])
	if _, err := os.Stat(file); err != nil {
		if err := m.buildBusybox(ctx, file); err != nil {
			return nil, nil, err
		}
	}
	if program, err = os.ReadFile(file); err != nil {
		return nil, nil, err
	}
	out, err := exec.CommandContext(ctx, file, "--list").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the programs in busybox: %w", err)
	}
	links = strings.Fields(string(out))
	return program, links, suits(ctx, file, links)
}

// suits returns an error if this busybox lacks something that tests need.
func suits(ctx context.Context, busybox string, links []string) error {
	for _, want := range []string{"sh", "wget"} {
		if !slices.Contains(links, want) {
			return fmt.Errorf("busybox has no %s: its build settings are wrong", want)
		}
	}
	out, err := exec.CommandContext(ctx, busybox, "sh", "-c", "echo $RANDOM").Output()
	if err != nil || strings.TrimSpace(string(out)) == "" {
		return fmt.Errorf("busybox's shell has no $RANDOM (%v): set ASH_RANDOM_SUPPORT", err)
	}
	return nil
}

func (m *maker) buildBusybox(ctx context.Context, file string) error {
	if err := m.ensure(ctx, map[string]string{"gcc": "gcc libc6-dev", "make": "make", "dpkg-source": "dpkg-dev", "bzip2": "bzip2"}); err != nil {
		return err
	}
	work := filepath.Join(m.dir, "busybox.build")
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := m.source(ctx, work, "busybox"); err != nil {
		return err
	}
	trees, err := filepath.Glob(filepath.Join(work, "busybox-*"))
	if err != nil || len(trees) != 1 {
		return fmt.Errorf("want one source tree of busybox in %s, got %q: %w", work, trees, err)
	}
	tree := trees[0]
	if err := m.cluster.Logged(ctx, "image-busybox-config", tree, nil, "make", "defconfig"); err != nil {
		return err
	}
	config, err := os.ReadFile(filepath.Join(tree, ".config"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tree, ".config"), configure(config, busyboxSettings), 0o644); err != nil {
		return err
	}
	// The configuration asks for options that depend on changed ones; an empty answer selects the default.
	if err := m.cluster.Logged(ctx, "image-busybox", tree, nil, "sh", "-c", fmt.Sprintf("yes '' | make oldconfig >/dev/null && make -j%d", runtime.NumCPU())); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tree, "busybox"), file)
}

// configure replaces settings in a busybox configuration.
func configure(config []byte, settings []string) []byte {
	name := func(line string) string {
		line = strings.TrimSuffix(strings.TrimPrefix(line, "# "), " is not set")
		line, _, _ = strings.Cut(line, "=")
		return line
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(config)) {
		line = strings.TrimSuffix(line, "\n")
		if i := slices.IndexFunc(settings, func(s string) bool { return name(s) == name(line) }); i >= 0 && line != "" {
			line = settings[i]
		}
		out.WriteString(line + "\n")
	}
	return out.Bytes()
}

// debianMirror returns the mirror that this machine's apt uses for the release.
func debianMirror(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("cannot list apt's sources: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[1] == debianRelease && fields[2] == "main" {
			return fields[0], nil
		}
	}
	return "", fmt.Errorf("apt has no source for Debian %s main: add one, then run apt-get update", debianRelease)
}

// source unpacks a Debian source package below work. apt uses a separate source list and state there, so that the
// machine's are not changed.
func (m *maker) source(ctx context.Context, work, name string) error {
	for _, dir := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(work, "apt", dir), 0o755); err != nil {
			return err
		}
	}
	apt := filepath.Join(work, "apt")
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	sources := fmt.Sprintf("deb-src [signed-by=%s] %s %s main\n", debianKeyring, mirror, debianRelease)
	settings := fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"-\";\nDir::State::lists %q;\nDir::Cache %q;\nAPT::Sandbox::User \"root\";\n",
		filepath.Join(apt, "sources.list"), filepath.Join(apt, "lists"), apt)
	for file, text := range map[string]string{"sources.list": sources, "apt.conf": settings} {
		if err := os.WriteFile(filepath.Join(apt, file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	env := []string{"APT_CONFIG=" + filepath.Join(apt, "apt.conf")}
	if err := m.cluster.Logged(ctx, "image-apt", work, env, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return m.cluster.Logged(ctx, "image-source-"+name, work, env, "apt-get", "source", "-qq", "--only-source", name)
}

// ensure installs the Debian packages of missing programs; a program may need several packages, separated by spaces.
func (m *maker) ensure(ctx context.Context, packages map[string]string) error {
	var missing []string
	for program, pkg := range packages {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, strings.Fields(pkg)...)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	m.cluster.Note("installed: %s", strings.Join(missing, " "))
	if err := m.cluster.Logged(ctx, "image-packages", m.dir, nil, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return m.cluster.Logged(ctx, "image-packages", m.dir, []string{"DEBIAN_FRONTEND=noninteractive"},
		append([]string{"apt-get", "install", "-y", "-qq", "--no-install-recommends"}, missing...)...)
}

func appendTo(file, text string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func removeAll(pattern string) error {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, name := range found {
		if err := os.RemoveAll(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
