package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// maintainer is the contact in packages.
const maintainer = "winkube authors <winkube@users.noreply.github.com>"

// packageFiles returns the files of a Linux package, by path on the host. kind is deb or rpm.
func packageFiles(kind string, s *source, checkout, pages, programs []file, thirdParty []byte) ([]file, error) {
	all := within("usr/bin", programs)
	for _, f := range renamed(checkout, "build/systemd", "") {
		if strings.HasSuffix(f.name, ".service") && !strings.Contains(f.name, "/") {
			f.name = path.Join("usr/lib/systemd/system", f.name)
		} else {
			// Not in systemd's path: otherwise a node that joined with `kubelet node join` would use kubeadm's files.
			f.name = path.Join("usr/share/winkube/systemd", f.name)
		}
		all = append(all, f)
	}
	all = append(all, renamed(checkout, "build/kubernetes", "usr/share/winkube/kubernetes")...)
	all = append(all, renamed(checkout, "build/samples", "usr/share/winkube/samples")...)
	all = append(all, file{"usr/share/winkube/package", 0o644, []byte(kind + "\n")}) // `kubelet node leave` reads it
	for _, f := range renamed(pages, "man", "usr/share/man/man8") {
		data, err := packed(f.data)
		if err != nil {
			return nil, err
		}
		all = append(all, file{f.name + ".gz", 0o644, data})
	}
	zsh := map[string]string{"deb": "usr/share/zsh/vendor-completions", "rpm": "usr/share/zsh/site-functions"}[kind]
	all = append(all, renamed(pages, "completions/bash", "usr/share/bash-completion/completions")...)
	all = append(all, renamed(pages, "completions/zsh", zsh)...)
	all = append(all, renamed(pages, "completions/fish", "usr/share/fish/vendor_completions.d")...)
	documents, err := packageDocuments(kind, s, checkout, thirdParty)
	return append(all, documents...), err
}

// packageDocuments returns manual pages, licences and change logs in the form that the kind of package requires.
func packageDocuments(kind string, s *source, checkout []file, thirdParty []byte) ([]file, error) {
	all := renamed(checkout, "docs", "usr/share/doc/winkube/docs")
	log, err := packed(fileNamed(checkout, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	licences, err := packed(thirdParty)
	if err != nil {
		return nil, err
	}
	all = append(all, file{"usr/share/doc/winkube/README.md", 0o644, fileNamed(checkout, "README.md")})
	all = append(all, file{"usr/share/doc/winkube/THIRD_PARTY_LICENSES.gz", 0o644, licences})
	if kind == "rpm" {
		return append(all, file{"usr/share/licenses/winkube/LICENSE", 0o644, fileNamed(checkout, "LICENSE")},
			file{"usr/share/doc/winkube/CHANGELOG.md.gz", 0o644, log}), nil
	}
	short, err := packed(debianChanges(s))
	if err != nil {
		return nil, err
	}
	return append(all, file{"usr/share/doc/winkube/copyright", 0o644, debianCopyright()}, file{"usr/share/doc/winkube/changelog.gz", 0o644, log},
		file{"usr/share/doc/winkube/changelog.Debian.gz", 0o644, short},
		file{"usr/share/lintian/overrides/winkube", 0o644, fileNamed(checkout, "build/package/lintian-overrides")}), nil
}

func fileNamed(files []file, name string) []byte {
	for _, f := range files {
		if f.name == name {
			return f.data
		}
	}
	return nil
}

func debianChanges(s *source) []byte {
	return fmt.Appendf(nil, "winkube (%s-1) unstable; urgency=medium\n\n  * Release %s. CHANGELOG.md, packed as changelog.gz, says what is new.\n\n -- %s  %s\n",
		debianVersion(s.Version), s.Version, maintainer, s.When.Format(time.RFC1123Z))
}

// debianVersion makes a prerelease sort before its release, in deb and rpm.
func debianVersion(version string) string { return strings.Replace(version, "-", "~", 1) }

func debianCopyright() []byte {
	return []byte(`Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: winkube
Source: ` + homepage + `

Files: *
Copyright: 2026 the winkube authors
License: Apache-2.0
 On Debian systems the full text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0.
Comment:
 The programs contain Go modules of others. THIRD_PARTY_LICENSES.gz beside
 this file has their names, versions and licences.
`)
}

// nfpm is the part of its configuration that we use: https://nfpm.goreleaser.com/docs/configuration
type nfpm struct {
	Name            string            `json:"name"`
	Arch            string            `json:"arch"`
	Platform        string            `json:"platform"`
	Version         string            `json:"version"`
	VersionSchema   string            `json:"version_schema"`
	Release         string            `json:"release"`
	Section         string            `json:"section"`
	Priority        string            `json:"priority"`
	Maintainer      string            `json:"maintainer"`
	Description     string            `json:"description"`
	Vendor          string            `json:"vendor"`
	Homepage        string            `json:"homepage"`
	License         string            `json:"license,omitempty"`
	MTime           string            `json:"mtime"`
	DisableGlobbing bool              `json:"disable_globbing"`
	Recommends      []string          `json:"recommends"`
	Conflicts       []string          `json:"conflicts"`
	Contents        []content         `json:"contents"`
	Scripts         map[string]string `json:"scripts"`
	RPM             map[string]string `json:"rpm,omitempty"`
}

type content struct {
	Source      string         `json:"src,omitempty"`
	Destination string         `json:"dst"`
	Type        string         `json:"type,omitempty"`
	Info        map[string]any `json:"file_info"`
}

const description = `Kubernetes node agent for hosts with Docker
 winkube makes a host with Docker a node of a current Kubernetes cluster:
 kubelet runs its pods, proxy serves its Services. Nothing is started before
 the host joins a cluster: kubelet node join does that.`

// packageConfig returns the configuration of a package whose files are below stage.
func packageConfig(kind, arch, stage string, s *source, files []file) nfpm {
	p := nfpm{
		Name: "winkube", Arch: arch, Platform: "linux", Version: debianVersion(s.Version), VersionSchema: "none", Release: "1", Section: "admin", Priority: "optional",
		Maintainer: maintainer, Vendor: "winkube", Homepage: homepage, MTime: s.When.Format(time.RFC3339), DisableGlobbing: true,
		Description: description, Conflicts: []string{"kubelet"}, Recommends: []string{"iptables", "nftables"}, Scripts: map[string]string{},
	}
	scripts := []string{"postinstall", "preremove", "postremove"}
	if kind == "rpm" {
		p.RPM = map[string]string{"buildhost": "winkube", "group": "System Environment/Daemons", "summary": strings.SplitN(description, "\n", 2)[0], "packager": maintainer}
		p.License, p.Description = "Apache-2.0", strings.ReplaceAll(strings.SplitN(description, "\n ", 2)[1], "\n ", "\n")
	} else {
		p.Conflicts = append(p.Conflicts, "libproxy-tools") // it contains /usr/bin/proxy too
		p.Recommends = append([]string{"docker.io | docker-ce"}, p.Recommends...)
	}
	for _, name := range scripts {
		p.Scripts[name] = filepath.Join(stage, kind+"-"+name)
	}
	for _, dir := range directories(files) {
		if strings.Contains(dir, "winkube") { // the distribution owns the others
			p.Contents = append(p.Contents, content{Destination: "/" + dir, Type: "dir", Info: map[string]any{"mode": 0o755, "owner": "root", "group": "root"}})
		}
	}
	for _, f := range files {
		kindOfFile := ""
		if kind == "rpm" && strings.HasPrefix(f.name, "usr/share/licenses/") {
			kindOfFile = "license"
		} else if kind == "rpm" && (strings.HasPrefix(f.name, "usr/share/doc/") || strings.HasPrefix(f.name, "usr/share/man/")) {
			kindOfFile = "doc"
		}
		p.Contents = append(p.Contents, content{Source: filepath.Join(stage, "files", filepath.FromSlash(f.name)), Destination: "/" + f.name, Type: kindOfFile,
			Info: map[string]any{"mode": int(f.mode.Perm()), "owner": "root", "group": "root"}})
	}
	return p
}

// makePackage runs nfpm and returns the package. work is a directory for temporary files.
func (s *source) makePackage(ctx context.Context, kind, arch, work, tool string, files, scripts []file) (file, error) {
	files, err := sorted(files)
	if err != nil {
		return file{}, err
	}
	stage := filepath.Join(work, kind+"-"+arch)
	defer os.RemoveAll(stage)
	staged := within("files", files)
	for _, f := range scripts {
		staged = append(staged, file{path.Base(f.name), 0o755, f.data})
	}
	for _, f := range staged {
		name := filepath.Join(stage, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return file{}, err
		}
		if err := os.WriteFile(name, f.data, f.mode); err != nil {
			return file{}, err
		}
	}
	config, err := yaml.Marshal(packageConfig(kind, arch, stage, s, files))
	if err != nil {
		return file{}, err
	}
	configName := filepath.Join(stage, "nfpm.yaml")
	if err := os.WriteFile(configName, config, 0o644); err != nil {
		return file{}, err
	}
	target := filepath.Join(stage, packageName(kind, arch, s.Version))
	if _, err := s.output(ctx, tool, "package", "--config", configName, "--packager", kind, "--target", target); err != nil {
		return file{}, err
	}
	data, err := os.ReadFile(target)
	return file{filepath.Base(target), 0o644, data}, err
}

// packageName returns the file name in the distribution's convention.
func packageName(kind, arch, version string) string {
	if kind == "deb" {
		return fmt.Sprintf("winkube_%s-1_%s.deb", debianVersion(version), arch)
	}
	return fmt.Sprintf("winkube-%s-1.%s.rpm", debianVersion(version), map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch])
}

// scriptsOf returns the package's scripts in the checkout.
func scriptsOf(kind string, checkout []file) []file {
	return slices.DeleteFunc(renamed(checkout, "build/package", ""), func(f file) bool { return !strings.HasPrefix(f.name, kind+"-") })
}
