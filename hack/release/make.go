package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

type platform struct{ system, arch string }

// platforms are the platforms of a release.
var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}}

// limits are the programs' maximum sizes in bytes: growth fails here, not on small hosts.
var limits = map[string]int{"kubelet": 36_000_000, "proxy": 27_000_000}

// inArchives are the checkout's files that archives contain beside the programs.
var inArchives = map[string][]string{
	"linux":   {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "docs", "build/systemd", "build/kubernetes", "build/samples", "build/pause"},
	"windows": {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "docs", "build/windows", "build/kubernetes", "build/samples", "build/pause"},
}

// build is a release in progress: the inputs of its artefacts, and those that are complete.
type build struct {
	*source
	part      part
	platforms []platform
	dir       string
	out       io.Writer
	began     time.Time
	programs  []program
	images    []madeImage
	licences  map[string]string // of modules, by path@version
	third     []byte
	pages     []file
	artefacts []file
}

// make writes the artefacts to dir and prints its steps.
func (s *source) make(ctx context.Context, of part, dir string, out io.Writer) error {
	b := &build{source: s, part: of, platforms: of.platforms(), dir: dir, out: out, began: time.Now()}
	for _, step := range []struct {
		name  string
		do    func(context.Context) error
		whole bool // not for a part
	}{
		{"programs", b.buildPrograms, false}, {"pause", b.buildPause, true}, {"licences", b.readLicences, false}, {"manual pages and completions", b.makePages, false},
		{"archives", b.makeArchives, false}, {"packages", b.makePackages, false}, {"images", b.makeImages, true}, {"bill of materials, provenance", b.makeStatements, true},
		{"sums", b.makeSums, false},
	} {
		if step.whole && of.kind != "" {
			continue
		}
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(out, "[%3.0f s] %s\n", time.Since(b.began).Seconds(), step.name)
	}
	return nil
}

// add writes an artefact.
func (b *build) add(name string, data []byte) error {
	b.artefacts = append(b.artefacts, file{name, 0o644, data})
	return os.WriteFile(filepath.Join(b.dir, name), data, 0o644)
}

// buildPrograms runs hack/build.sh, as make does, and checks the programs.
func (b *build) buildPrograms(ctx context.Context) error {
	var names []string
	for _, p := range b.platforms {
		names = append(names, p.system+"/"+p.arch)
	}
	if b.part.programs == "" {
		if _, err := b.output(ctx, "env", "KUBE_BUILD_PLATFORMS="+strings.Join(names, " "), "hack/build.sh"); err != nil {
			return err
		}
	}
	for _, p := range b.platforms {
		for _, name := range []string{"kubelet", "proxy"} {
			base := name
			if p.system == "windows" {
				base += ".exe"
			}
			built := filepath.Join(cmp.Or(b.part.programs, filepath.Join(b.Root, "_output", "bin", p.system, p.arch)), base)
			data, err := os.ReadFile(built)
			if err != nil {
				return err
			}
			if len(data) > limits[name] && b.part.programs == "" { // those of tests may count coverage
				return fmt.Errorf("%s has %.1f MB: want at most %.1f MB; find what grew, or change the limit in hack/release", built, float64(len(data))/1e6, float64(limits[name])/1e6)
			}
			if err := checkProgram(data, p.system, p.arch); err != nil {
				return fmt.Errorf("%s: %w", built, err)
			}
			modules, err := dependencies(built)
			if err != nil {
				return err
			}
			b.programs = append(b.programs, program{base, p.system, p.arch, data, modules})
		}
	}
	return nil
}

// checkProgram requires that a program is for the platform, is linked statically, and contains no paths of this
// machine.
func checkProgram(data []byte, system, arch string) error {
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return err
	}
	for _, want := range [][2]string{{"GOOS", system}, {"GOARCH", arch}, {"CGO_ENABLED", "0"}, {"-trimpath", "true"}} {
		got := ""
		for _, s := range info.Settings {
			if s.Key == want[0] {
				got = s.Value
			}
		}
		if got != want[1] {
			return fmt.Errorf("it was built with %s=%s: want %s", want[0], got, want[1])
		}
	}
	return nil
}

// readLicences reads the licences of Go and of all modules in the programs.
func (b *build) readLicences(ctx context.Context) error {
	dirs := packageDirs{}
	for _, p := range b.platforms {
		listed, err := b.output(ctx, "env", "GOOS="+p.system, "GOARCH="+p.arch, "go", "list", "-deps", "-tags=grpcnotrace", "-f", listFormat, "./cmd/kubelet", "./cmd/kube-proxy", "./build/images/pause")
		if err != nil {
			return err
		}
		if err := dirs.add(listed); err != nil {
			return err
		}
	}
	modules := map[string]dependency{}
	for i := range b.programs {
		for _, m := range b.programs[i].Modules {
			modules[m.Path+"@"+m.Version] = m
		}
	}
	var all []dependency
	for _, m := range modules {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b dependency) int { return strings.Compare(a.Path+"@"+a.Version, b.Path+"@"+b.Version) })
	std, err := b.goItself(ctx)
	if err != nil {
		return err
	}
	b.licences = map[string]string{}
	for i := range all {
		if err := all[i].readLicences(dirs[all[i].Path]); err != nil {
			return err
		}
		b.licences[all[i].Path+"@"+all[i].Version] = all[i].Licence
	}
	b.licences["std@"+std.Version] = std.Licence
	for i := range b.programs {
		b.programs[i].Modules = append(b.programs[i].Modules, std)
	}
	b.third = thirdParty(append(all, std))
	return b.add("THIRD_PARTY_LICENSES.txt", b.third)
}

// goItself returns Go's standard library as a dependency: each program contains it. Its version is the one that built
// them.
func (b *build) goItself(ctx context.Context) (dependency, error) {
	info, err := buildinfo.Read(bytes.NewReader(b.programs[0].Data))
	if err != nil {
		return dependency{}, err
	}
	d := dependency{Path: "std", Version: strings.Fields(info.GoVersion)[0]}
	root, err := b.output(ctx, "go", "env", "GOROOT")
	if err != nil {
		return d, err
	}
	return d, d.readLicences([]string{strings.TrimSpace(root)})
}

// makePages generates manual pages and completions.
func (b *build) makePages(context.Context) (err error) {
	b.pages, err = generated(b.Version, b.When)
	return err
}

// makeArchives writes a tar archive for each Linux platform and a zip archive for each Windows platform, with an msi of
// the same files.
func (b *build) makeArchives(ctx context.Context) error {
	for _, p := range b.platforms {
		if !b.part.wants(archiveOf(p.system)) {
			continue
		}
		checkout, err := b.tracked(ctx, inArchives[p.system]...)
		if err != nil {
			return err
		}
		files := slices.Concat(b.programsFor(p.system, p.arch), checkout, []file{{"THIRD_PARTY_LICENSES.txt", 0o644, b.third}})
		name := fmt.Sprintf("winkube-%s-%s-%s", b.Version, p.system, p.arch)
		var data bytes.Buffer
		if p.system == "windows" {
			name += ".zip"
			// Install-Node.ps1 looks for the programs in its own directory.
			files = append(files, renamed(checkout, "build/windows", "")...)
			if b.part.wants("msi") {
				if err := b.addInstaller(ctx, files); err != nil {
					return err
				}
			}
			err = writeZip(&data, files, b.When)
		} else {
			files = within(name, append(files, b.pages...))
			name += ".tar.gz"
			err = writeTar(&data, files, b.When)
		}
		if err != nil {
			return err
		}
		if err := b.add(name, data.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func (b *build) programsFor(system, arch string) (files []file) {
	for _, p := range b.programs {
		if p.System == system && p.Arch == arch && p.Name != "pause" { // it is in its image only
			files = append(files, file{p.Name, 0o755, p.Data})
		}
	}
	return files
}

// makePackages builds nfpm from its module and runs it for each package.
func (b *build) makePackages(ctx context.Context) error {
	if !b.part.wants("deb") && !b.part.wants("rpm") {
		return nil
	}
	checkout, err := b.tracked(ctx, append([]string{"build/package"}, inArchives["linux"]...)...)
	if err != nil {
		return err
	}
	tool, err := b.buildNFPM(ctx)
	if err != nil {
		return err
	}
	work, err := filepath.Abs(b.dir)
	if err != nil {
		return err
	}
	for _, p := range b.platforms {
		if p.system != "linux" {
			continue
		}
		for _, kind := range []string{"deb", "rpm"} {
			if !b.part.wants(kind) {
				continue
			}
			files, err := packageFiles(kind, b.source, checkout, b.pages, b.programsFor(p.system, p.arch), b.third)
			if err != nil {
				return err
			}
			made, err := b.makePackage(ctx, kind, p.arch, work, tool, files, scriptsOf(kind, checkout))
			if err != nil {
				return err
			}
			if err := b.add(made.name, made.data); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeStatements writes what the artefacts contain and how they were built.
func (b *build) makeStatements(context.Context) error {
	bill, err := billOfMaterials(b.source, b.programs, b.images, b.licences)
	if err != nil {
		return err
	}
	if err := b.add("winkube-"+b.Version+".spdx.json", bill); err != nil {
		return err
	}
	goVersion := ""
	for _, m := range b.programs[0].Modules {
		if m.Path == "std" {
			goVersion = m.Version
		}
	}
	statement, err := provenanceOf(b.source, b.artefacts, goVersion)
	if err != nil {
		return err
	}
	return b.add("winkube-"+b.Version+".provenance.json", statement)
}

// makeSums writes the sums of all artefacts.
func (b *build) makeSums(context.Context) error {
	return os.WriteFile(filepath.Join(b.dir, sumsName), sums(b.artefacts), 0o644)
}
