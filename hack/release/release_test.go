package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	spdx "github.com/spdx/tools-golang/json"
)

var when = time.Unix(1_700_000_000, 0).UTC()

var some = []file{{"b/two", 0o755, []byte("2")}, {"a", 0o644, []byte("1")}, {"b/c/three", 0o644, bytes.Repeat([]byte("3"), 5000)}}

// TestTar: the order of its files does not change an archive. It contains directories, and fixed owners, times and
// modes.
func TestTar(t *testing.T) {
	var one, two bytes.Buffer
	reversed := slices.Clone(some)
	slices.Reverse(reversed)
	if err := writeTar(&one, some, when); err != nil {
		t.Fatal(err)
	}
	if err := writeTar(&two, reversed, when); err != nil || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Fatalf("the order of files changes the archive (%v)", err)
	}
	unpacked, err := gzip.NewReader(&one)
	if err != nil || !unpacked.ModTime.IsZero() || unpacked.Name != "" {
		t.Fatalf("the header of gzip has %v, %q, %v", unpacked.ModTime, unpacked.Name, err)
	}
	var names []string
	for archive := tar.NewReader(unpacked); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "root" || h.Gname != "root" || !h.ModTime.Equal(when) {
			t.Errorf("%s belongs to %d:%d %s:%s, of %s", h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime)
		}
		if want := map[string]int64{"b/": 0o755, "b/c/": 0o755, "a": 0o644, "b/two": 0o755, "b/c/three": 0o644}[h.Name]; h.Mode != want {
			t.Errorf("%s has mode %o, want %o", h.Name, h.Mode, want)
		}
	}
	if got := strings.Join(names, " "); got != "b/ b/c/ a b/c/three b/two" {
		t.Errorf("the archive has %s", got)
	}
}

// TestZip: the same for zip.
func TestZip(t *testing.T) {
	var one, two bytes.Buffer
	reversed := slices.Clone(some)
	slices.Reverse(reversed)
	if err := writeZip(&one, some, when); err != nil {
		t.Fatal(err)
	}
	if err := writeZip(&two, reversed, when.In(time.FixedZone("elsewhere", 7200))); err != nil || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Fatalf("order of files or time zone change the archive (%v)", err)
	}
	archive, err := zip.NewReader(bytes.NewReader(one.Bytes()), int64(one.Len()))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range archive.File {
		names = append(names, f.Name)
		if !f.Modified.Equal(when) {
			t.Errorf("%s is of %s", f.Name, f.Modified)
		}
	}
	if got := strings.Join(names, " "); got != "a b/c/three b/two" {
		t.Errorf("the archive has %s", got)
	}
}

// TestBadNames: names that would leave the target directory, or overwrite a file, are refused.
func TestBadNames(t *testing.T) {
	for name, want := range map[string]string{"../up": "is no name", "/etc/passwd": "is no name", "": "is no name", ".": "is no name", "a//b": "is no name", "a": "twice"} {
		for _, write := range []func(io.Writer, []file, time.Time) error{writeTar, writeZip} {
			if err := write(io.Discard, []file{{"a", 0o644, nil}, {name, 0o644, nil}}, when); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", name, err, want)
			}
		}
	}
}

// checkout creates a repository with a commit.
func checkout(t *testing.T, version, changelog string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"hack/VERSION": version, "CHANGELOG.md": changelog} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=n", "-c", "user.email=e@localhost", "commit", "-q", "-m", "m", "--date", "2026-01-02T03:04:05Z"}} {
		command := exec.Command("git", args...)
		command.Dir, command.Env = dir, append(os.Environ(), "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
		command.Stderr = os.Stderr
		if err := command.Run(); err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
	}
	return dir
}

const changes = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n- This.\n\n## [1.2.2]\n\n- That.\n\n[1.2.2]: https://example.org\n"

func TestSource(t *testing.T) {
	dir := checkout(t, "1.2.3\n", changes)
	s, err := readSource(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != "1.2.3" || len(s.Commit) != 40 || s.Dirty || s.When.Format(time.RFC3339) != "2026-01-02T03:04:05Z" {
		t.Errorf("%+v", s)
	}
	if s, err = readSource(t.Context(), dir, "1700000000"); err != nil || !s.When.Equal(when) {
		t.Errorf("SOURCE_DATE_EPOCH: %v, %v", s, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte(changes+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err = readSource(t.Context(), dir, ""); err != nil || !s.Dirty {
		t.Errorf("a changed file is not noticed: %v, %v", s, err)
	}
}

// TestBadSource: for a source that cannot be released, the error is one line that says what would be right.
func TestBadSource(t *testing.T) {
	good := checkout(t, "1.2.3\n", changes)
	for name, c := range map[string]struct{ dir, epoch, want string }{
		"no checkout":         {t.TempDir(), "", "run this in the root of the checkout"},
		"no semantic version": {checkout(t, "v1.2\n", changes), "", `hack/VERSION: "v1.2": want a semantic version such as 1.2.3`},
		"no section":          {checkout(t, "1.2.4\n", changes), "", `CHANGELOG.md: no section "## [1.2.4]"`},
		"empty section":       {checkout(t, "1.2.3\n", "## [1.2.3]\n\n## [1.2.2]\n- x\n"), "", "no section"},
		"time is no number":   {good, "yesterday", "SOURCE_DATE_EPOCH=yesterday: want seconds"},
		"time before zip":     {good, "5", "from 315532800 on"},
	} {
		if _, err := readSource(t.Context(), c.dir, c.epoch); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestChangesOf(t *testing.T) {
	for version, want := range map[string]string{"1.2.3": "### Added\n\n- This.", "1.2.2": "- That.", "1.2": "", "Unreleased": ""} {
		if got := changesOf(changes, version); got != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
}

// TestOutput: only an earlier release is replaced.
func TestOutput(t *testing.T) {
	dir := t.TempDir()
	if made, err := replaceable(filepath.Join(dir, "none")); made || err != nil {
		t.Errorf("%v, %v", made, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := replaceable(dir); err == nil || !strings.Contains(err.Error(), "there are other files in it") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, sumsName), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if made, err := replaceable(dir); !made || err != nil {
		t.Errorf("%v, %v", made, err)
	}
}

// TestReplace: a release replaces the previous one, an error changes nothing, and a user's directory X.new is left alone.
func TestReplace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out", "x")
	mine := filepath.Join(dir+".new", "mine")
	if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for i, want := range []error{nil, nil, broken} {
		err := replace(dir, i > 0, func(fresh string) error {
			return errors.Join(os.WriteFile(filepath.Join(fresh, strconv.Itoa(i)), nil, 0o644), want)
		})
		if !errors.Is(err, want) {
			t.Errorf("release %d: %v, want %v", i, err, want)
		}
	}
	have, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "*", "*"))
	if err != nil || !slices.Equal(have, []string{filepath.Join(dir, "1"), mine}) {
		t.Errorf("%q, %v", have, err)
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestLicencesIn(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n    Version 2.0, January 2004":                                                         "Apache-2.0",
		"// Permission is hereby granted, free of\n// charge, to any person obtaining a copy":                   "MIT",
		"Redistribution and use in source and binary forms, with or without":                                    "BSD-2-Clause",
		"Redistribution and use in source and binary forms\n * Neither the name of X":                           "BSD-3-Clause",
		"Permission to use, copy, modify, and/or distribute this software for any\npurpose with or without fee": "ISC",
		"Mozilla Public License Version 2.0":                                                                    "MPL-2.0",
		"All rights reserved. Do not copy me.":                                                                  "",
	} {
		if got := strings.Join(licencesIn(text), " AND "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestReadLicences: licences in parent directories of the programs' packages count, others in the module do not. A module without
// any is an error.
func TestReadLicences(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"LICENSE": "Apache License Version 2.0, January 2004", "third/LICENSE.txt": "Permission is hereby granted, free of charge, to any person obtaining a copy",
		"third/code/license.go": "package code", "other/COPYING": "GNU General Public License Version 2, June 1991"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dirs := packageDirs{}
	if err := dirs.add("\nm\t" + root + "\t" + filepath.Join(root, "third", "code") + "\n"); err != nil {
		t.Fatal(err)
	}
	d := dependency{Path: "m", Version: "v1.0.0"}
	if err := d.readLicences(dirs["m"]); err != nil || d.Licence != "Apache-2.0 AND MIT" || len(d.Texts) != 2 {
		t.Errorf("%s, %d texts, %v", d.Licence, len(d.Texts), err)
	}
	both := string(thirdParty([]dependency{d, {Path: "n", Version: "v2.0.0", Licence: "Apache-2.0", Texts: d.Texts[:1]}}))
	if strings.Count(both, "January 2004") != 1 || !strings.Contains(both, "m v1.0.0, LICENSE\nn v2.0.0, LICENSE\n") {
		t.Errorf("a shared text is not there once, with both modules:\n%s", both)
	}
	if err := (&dependency{Path: "none", Version: "v1.0.0"}).readLicences([]string{filepath.Join(root, "third", "code")}); err == nil || !strings.Contains(err.Error(), "module none v1.0.0: no licence") {
		t.Errorf("%v", err)
	}
	if err := (&dependency{Path: "gone", Version: "v1.0.0"}).readLicences(dirs["gone"]); err == nil || !strings.Contains(err.Error(), "go list does not know it") {
		t.Errorf("%v", err)
	}
	if err := dirs.add("m\t\t\n"); err == nil || !strings.Contains(err.Error(), "go mod download") {
		t.Errorf("a module that is not in the cache: %v", err)
	}
}

// TestBillOfMaterials: SPDX's own library can read it, it lists each module once, and a module without a licence is an
// error.
func TestBillOfMaterials(t *testing.T) {
	s := &source{Version: "1.2.3", Commit: strings.Repeat("a", 40), When: when}
	modules := []dependency{{Path: "m", Version: "v1.0.0+incompatible", Sum: "h1:x="}, {Path: "n", Version: "v2.0.0", Sum: "h1:y="}}
	programs := []program{{"kubelet", "linux", "amd64", []byte("k"), modules}, {"proxy", "linux", "amd64", []byte("p"), modules[:1]}}
	images := []madeImage{{programs[1], "winkube-proxy.oci.tar", "sha256:d", "5"}}
	bill, err := billOfMaterials(s, programs, images, map[string]string{"m@v1.0.0+incompatible": "MIT", "n@v2.0.0": "ISC"})
	if err != nil {
		t.Fatal(err)
	}
	document, err := spdx.Read(bytes.NewReader(bill))
	if err != nil {
		t.Fatal(err)
	}
	if len(document.Packages) != 5 || len(document.Relationships) != 7 || document.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("%d packages, %d relationships, of %s", len(document.Packages), len(document.Relationships), document.CreationInfo.Created)
	}
	if got := document.Packages[4].PackageExternalReferences[0].Locator; got != "pkg:oci/proxy@sha256%3Ad?arch=amd64" || document.Packages[4].PackageFileName != "winkube-proxy.oci.tar" {
		t.Errorf("the image is %+v", document.Packages[4])
	}
	if got := document.Packages[1].PackageExternalReferences[0].Locator; got != "pkg:golang/m@v1.0.0%2Bincompatible" {
		t.Errorf("purl %s", got)
	}
	if _, err := billOfMaterials(s, programs, nil, nil); err == nil || !strings.Contains(err.Error(), "the licence of module m v1.0.0+incompatible is not known") {
		t.Errorf("%v", err)
	}
}

// TestProvenance: the statement has the checksums of all artefacts by name, and does not depend on their order.
func TestProvenance(t *testing.T) {
	s := &source{Version: "1.2.3", Commit: strings.Repeat("a", 40), When: when}
	artefacts := []file{{"b", 0, []byte("2")}, {"a", 0, []byte("1")}}
	one, err := provenanceOf(s, artefacts, "go1.26")
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(artefacts)
	two, err := provenanceOf(s, artefacts, "go1.26")
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("the order changes the statement (%v)", err)
	}
	var st statement
	if err := json.Unmarshal(one, &st); err != nil || len(st.Subject) != 2 || st.Subject[0].Name != "a" || st.Subject[0].Digest["sha256"] != "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b" {
		t.Errorf("%+v, %v", st, err)
	}
	if got := string(sums(artefacts)); got != "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b  a\nd4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35  b\n" {
		t.Errorf("sums:\n%s", got)
	}
}

// TestPages: every command has its manual page and shell completions, and two runs give equal files.
func TestPages(t *testing.T) {
	one, err := generated("1.2.3", when)
	if err != nil {
		t.Fatal(err)
	}
	two, err := generated("1.2.3", when)
	if err != nil || len(one) != len(two) {
		t.Fatalf("%d and %d pages, %v", len(one), len(two), err)
	}
	names := map[string]string{}
	for i, f := range one {
		names[f.name] = string(f.data)
		if !bytes.Equal(f.data, two[i].data) {
			t.Errorf("%s differs in a second run", f.name)
		}
	}
	for name, want := range map[string]string{"man/kubelet.8": "--kubeconfig", "man/kubelet-node-join.8": "--token", "man/proxy.8": "--proxy-mode", "man/proxy-table.8": "proxy-table",
		"completions/bash/kubelet": "__start_kubelet", "completions/zsh/_proxy": "#compdef proxy", "completions/fish/kubelet.fish": "complete -c kubelet"} {
		if !strings.Contains(names[name], want) {
			t.Errorf("%s lacks %q", name, want)
		}
	}
	if page := names["man/kubelet.8"]; !strings.Contains(page, `"Nov 2023"`) || !strings.Contains(page, "winkube 1.2.3") {
		t.Errorf("the head of the page: %.200s", page)
	}
}

// checkoutFiles returns the files of this checkout that go into packages.
func checkoutFiles(t *testing.T) []file {
	t.Helper()
	s := &source{Root: filepath.Join("..", "..")}
	files, err := s.tracked(t.Context(), append([]string{"build/package"}, inArchives["linux"]...)...)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestPackageFiles: units are where systemd looks and equal those of node join. The drop-in for kubeadm and settings are elsewhere, because join
// would not accept them. All names are valid in a package.
func TestPackageFiles(t *testing.T) {
	checkout := checkoutFiles(t)
	pages, err := generated("1.2.3", when)
	if err != nil {
		t.Fatal(err)
	}
	programs := []file{{"kubelet", 0o755, []byte("k")}, {"proxy", 0o755, []byte("p")}}
	for kind, more := range map[string]string{"deb": "usr/share/doc/winkube/copyright", "rpm": "usr/share/licenses/winkube/LICENSE"} {
		files, err := packageFiles(kind, &source{Version: "1.2.3", When: when}, checkout, pages, programs, []byte("licences"))
		if err != nil {
			t.Fatal(err)
		}
		if files, err = sorted(files); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasPrefix(f.name, "usr/") || len(f.data) == 0 || strings.HasSuffix(f.name, "10-kubeadm.conf") && strings.Contains(f.name, "lib/systemd") {
				t.Errorf("%s: %s with %d bytes", kind, f.name, len(f.data))
			}
			if want := map[bool]os.FileMode{true: 0o755, false: 0o644}[strings.HasPrefix(f.name, "usr/bin/")]; f.mode != want {
				t.Errorf("%s: %s has mode %o", kind, f.name, f.mode)
			}
		}
		for _, unit := range []string{"kubelet", "proxy", "kubelet-cri"} {
			if got := fileNamed(files, "usr/lib/systemd/system/"+unit+".service"); !bytes.Equal(got, fileNamed(checkout, "build/systemd/"+unit+".service")) {
				t.Errorf("%s: unit %s is\n%s", kind, unit, got)
			}
		}
		for _, name := range []string{more, "usr/bin/kubelet", "usr/bin/proxy", "usr/share/man/man8/kubelet.8.gz", "usr/share/bash-completion/completions/proxy", "usr/share/winkube/kubernetes/node-join.yaml"} {
			if fileNamed(files, name) == nil {
				t.Errorf("%s lacks %s", kind, name)
			}
		}
		if got := string(fileNamed(files, "usr/share/winkube/package")); got != kind+"\n" {
			t.Errorf("the mark of the package is %q", got)
		}
		if got := len(scriptsOf(kind, checkout)); got != 3 {
			t.Errorf("%s has %d scripts", kind, got)
		}
	}
}

func TestPackageConfig(t *testing.T) {
	s := &source{Version: "1.2.3-rc.1", When: when}
	files := []file{{"usr/bin/kubelet", 0o755, nil}, {"usr/share/doc/winkube/a", 0o644, nil}}
	deb, rpm := packageConfig("deb", "amd64", "stage", s, files), packageConfig("rpm", "arm64", "stage", s, files)
	if deb.Version != "1.2.3~rc.1" || !slices.Equal(deb.Conflicts, []string{"kubelet", "libproxy-tools"}) || deb.Scripts["postremove"] != filepath.Join("stage", "deb-postremove") {
		t.Errorf("%+v", deb)
	}
	if rpm.RPM["buildhost"] != "winkube" || rpm.MTime != "2023-11-14T22:13:20Z" || len(rpm.Contents) != 3 || rpm.Contents[2].Type != "doc" || rpm.Contents[0].Type != "dir" {
		t.Errorf("%+v", rpm)
	}
	for _, c := range []struct{ kind, arch, want string }{{"deb", "arm64", "winkube_1.2.3~rc.1-1_arm64.deb"}, {"rpm", "arm64", "winkube-1.2.3~rc.1-1.aarch64.rpm"}, {"rpm", "amd64", "winkube-1.2.3~rc.1-1.x86_64.rpm"}} {
		if got := packageName(c.kind, c.arch, s.Version); got != c.want {
			t.Errorf("%s for %s is called %s, want %s", c.kind, c.arch, got, c.want)
		}
	}
}

// TestCheckProgram: the test binary fails the check, because it was not built like a release.
func TestCheckProgram(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkProgram(data, "windows", "amd64"); err == nil || !strings.Contains(err.Error(), "want windows") {
		t.Errorf("%v", err)
	}
	if err := checkProgram([]byte("no program"), "linux", "amd64"); err == nil {
		t.Error("a file that is no program is accepted")
	}
}

// TestCorrected: each correction of rpmpack is made in one place, or none is.
func TestCorrected(t *testing.T) {
	whole, want := "package rpmpack\n", "package rpmpack\n"
	for _, c := range corrections {
		whole, want = whole+c.is+"\n", want+c.want+"\n"
	}
	if got, err := corrected(whole); err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for _, source := range []string{"", want, whole + whole, strings.Replace(whole, corrections[1].is, "", 1)} {
		if got, err := corrected(source); err == nil || got != "" || !strings.Contains(err.Error(), "want once") {
			t.Errorf("%q becomes %q, %v", source, got, err)
		}
	}
}
