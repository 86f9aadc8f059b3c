package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var installed = []file{{"kubelet.exe", 0o755, []byte("MZ kubelet")}, {"proxy.exe", 0o755, []byte("MZ proxy")}, {"Install-Node.ps1", 0o644, []byte("# script")},
	{"docs/guides/windows.md", 0o644, []byte("# Windows & more")}, {"docs/index.md", 0o644, []byte("# Docs")}}

// TestInstaller builds an msi and reads it with tools that are not ours: what it installs, where, and what it replaces.
func TestInstaller(t *testing.T) {
	for _, tool := range []string{"wixl", "msiinfo", "msiextract"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing: hack/ensure-packages.sh msi", tool)
		}
	}
	b := &build{source: &source{Root: ".", Version: "1.2.3", Commit: "0123456789abcdef", When: when}}
	msi, err := b.makeInstaller(t.Context(), installed)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.makeInstaller(t.Context(), installed)
	if err != nil || !bytes.Equal(msi, again) {
		t.Errorf("a second build differs (%v)", err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "winkube.msi")
	if err := os.WriteFile(path, msi, 0o600); err != nil {
		t.Fatal(err)
	}
	said := func(name string, args ...string) string {
		out, err := exec.CommandContext(t.Context(), name, args...).Output()
		if err != nil {
			t.Fatalf("%s %q: %v", name, args, err)
		}
		return strings.ReplaceAll(string(out), "\r", "")
	}
	for table, want := range map[string][]string{
		"Property": {"ALLUSERS\t1", "ProductName\twinkube", "ProductVersion\t1.2.3", "UpgradeCode\t{" + uuid("winkube") + "}", "ProductCode\t{" + uuid("product 1.2.3") + "}"},
		"Upgrade":  {"WIX_UPGRADE_DETECTED", "WIX_DOWNGRADE_DETECTED"}, "LaunchCondition": {"NOT WIX_DOWNGRADE_DETECTED\tA newer winkube is installed."},
		"Directory": {"INSTALLDIR\tProgramFiles64Folder\twinkube", "ProgramFiles64Folder\tTARGETDIR"}, "File": {"kubelet.exe", "proxy.exe", "windows.md"},
	} {
		if got := said("msiinfo", "export", path, table); !containsAll(got, want) {
			t.Errorf("table %s has no %q:\n%s", table, want, got)
		}
	}
	tables := strings.Fields(said("msiinfo", "tables", path))
	for _, table := range []string{"ServiceInstall", "CustomAction", "Registry", "RemoveFile"} { // node join makes these things
		if rows := strings.Count(said("msiinfo", "export", path, table), "\n"); slices.Contains(tables, table) && rows > 3 {
			t.Errorf("table %s has %d rows besides its heading", table, rows-3)
		}
	}
	if sum := said("env", "TZ=UTC", "msiinfo", "suminfo", path); !containsAll(sum, []string{"x64;1033", "{" + uuid("package 1.2.3 0123456789abcdef") + "}", "Created: Tue Nov 14 22:13:20 2023", "Last saved: Tue Nov 14 22:13:20 2023"}) {
		t.Errorf("summary information:\n%s", sum)
	}
	said("msiextract", "--directory", filepath.Join(dir, "out"), path)
	for _, f := range installed {
		if got := extracted(t, dir, f.name); got != string(f.data) {
			t.Errorf("%s is %q", f.name, got)
		}
	}
}

// extracted returns the content of the file of that name below winkube.
func extracted(t *testing.T, dir, name string) (data string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "out"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(filepath.ToSlash(path), "/winkube/"+name) {
			var b []byte
			b, err = os.ReadFile(path)
			data = string(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func containsAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// TestInstallerVersions: Windows Installer compares three numbers, and a prerelease would hide its release.
func TestInstallerVersions(t *testing.T) {
	for version, why := range map[string]string{"1.2.3": "", "0.1.0": "", "1.2.3-rc.1": "no prereleases", "1.2": "three numbers", "1.2.345678": "three numbers"} {
		_, err := installer(version, installed)
		if (why == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", version, err, why)
		}
	}
	if _, err := installer("1.2.3", append(installed, file{"../x", 0o644, nil})); err == nil {
		t.Error("a file outside of the directory is accepted")
	}
	one, err := installer("1.2.3", installed)
	if err != nil {
		t.Fatal(err)
	}
	two, err := installer("1.2.4", installed)
	guids := regexp.MustCompile(`Guid="[^"]*"`)
	if a, b := guids.FindAllString(string(one), -1), guids.FindAllString(string(two), -1); err != nil || len(a) != len(installed) || !slices.Equal(a, b) {
		t.Errorf("components of two versions: %q, %q, %v", a, b, err)
	}
	product := regexp.MustCompile(`<Product Id="[^"]*"`)
	if a, b := product.FindString(string(one)), product.FindString(string(two)); a == b || a == "" {
		t.Errorf("two versions are one product: %s", a)
	}
}

// TestSettled: an msi in another form than expected is an error, and not changed anywhere.
func TestSettled(t *testing.T) {
	random, code := "{D6903300-1FDA-443B-A272-3687348931F1}", "{"+uuid("package")+"}"
	filetime := "\x40\x00\x00\x0012345678"
	good := "before" + random + "\x00\x00" + filetime + filetime + "after"
	got, err := settled([]byte(good), random, code, when)
	if err != nil || len(got) != len(good) || !strings.HasPrefix(string(got), "before"+code+"\x00\x00\x40") || !strings.HasSuffix(string(got), "after") {
		t.Errorf("%q, %v", got, err)
	}
	other, err := settled([]byte(good), random, code, when.Add(time.Hour))
	if err != nil || bytes.Equal(got, other) {
		t.Errorf("the time is not in it: %v", err)
	}
	for _, bad := range []string{"", good + random, strings.Replace(good, "\x40", "\x41", 1), strings.Replace(good, filetime+filetime, filetime, 1), "before" + random} {
		if got, err := settled([]byte(bad), random, code, when); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}
