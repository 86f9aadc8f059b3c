package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/output"
)

// TestLint checks the packages with lintian, rpmlint and sha256sum: with WINKUBE_INSTALL the release that was made, else packages with stand-ins for the
// programs. rpmlint unpacks an rpm by cpio, which writes absolute names to where they say. So it runs in a copy of this machine, where such names show.
func TestLint(t *testing.T) {
	m := &machine{T: t, artefact: filepath.Join("..", "..", "_output", "release")}
	if os.Getenv("WINKUBE_INSTALL") != "" {
		m.host("../ensure-packages.sh", "release")
	}
	for _, tool := range []string{"lintian", "rpmlint"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing: hack/ensure-packages.sh release", tool)
		}
	}
	m.copied()
	if os.Getenv("WINKUBE_INSTALL") == "" {
		m.artefact = standIns(t)
	}
	m.host("sh", "-ec", "cd "+m.artefact+" && sha256sum --check --strict --quiet SHA256SUMS")
	m.host("sh", "-ec", "lintian --allow-root --fail-on error "+m.artefact+"/*.deb")
	packages, err := filepath.Glob(filepath.Join(m.artefact, "*.rpm"))
	if err != nil || len(packages) != 2 {
		t.Fatalf("packages %q, %v; want two", packages, err)
	}
	for _, file := range packages {
		m.put(file, "root/"+filepath.Base(file))
	}
	before := m.tree()
	m.must(`mkdir /root/unpacked && cd /root/unpacked && for rpm in /root/*.rpm; do rpm2cpio $rpm >../cpio && cpio -idu --quiet <../cpio && ls usr/bin/kubelet usr/bin/proxy; done`)
	if got := m.tree(); got != before {
		t.Errorf("cpio writes an rpm's files outside its directory:\n%s", difference(before, got))
	}
	lint, _ := m.sh("cd /root && rpmlint *.rpm") // its exit status also counts the errors excluded below
	for line := range strings.Lines(lint) {
		switch {
		case !strings.Contains(line, ": E: "):
		case strings.Contains(line, "no-signature"), strings.Contains(line, "no-changelogname-tag"): // there is no key; the change log is a file of the package
		case strings.Contains(line, "no-binary"), strings.Contains(line, "statically-linked-binary"): // properties of Go binaries
		default:
			t.Errorf("rpmlint: %s", line)
		}
	}
	if !strings.Contains(lint, "packages and 0 specfiles checked") {
		t.Errorf("rpmlint did not run: %s", lint)
	}
}

// TestDamaged: the guide's commands find an archive that was fetched in part or changed, and a file of sums that is none.
func TestDamaged(t *testing.T) {
	const name, check = "winkube-1.2.3-linux-amd64.tar.gz", "sha256sum --check --ignore-missing SHA256SUMS"
	guide, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", "install.md"))
	if err != nil || !strings.Contains(string(guide), check) {
		t.Fatalf("the guide does not have %q (%v)", check, err)
	}
	var archive bytes.Buffer
	if err := writeTar(&archive, some, when); err != nil {
		t.Fatal(err)
	}
	whole := archive.Bytes()
	good := string(sums([]file{{name, 0o644, whole}, {"another.zip", 0o644, nil}}))
	changed := bytes.Clone(whole)
	changed[len(changed)/2] ^= 1
	for what, c := range map[string]struct {
		data []byte
		sums string
		want string // "": accepted
	}{
		"whole":          {whole, good, ""},
		"half":           {whole[:len(whole)/2], good, name + ": FAILED"},
		"one bit":        {changed, good, name + ": FAILED"},
		"nothing":        {nil, good, name + ": FAILED"},
		"a page as sums": {whole, "<html>404</html>\n", "no properly formatted"},
		"other's sums":   {whole, strings.ReplaceAll(good, name, "other.tar.gz"), "no file was verified"},
	} {
		dir := t.TempDir()
		for file, data := range map[string][]byte{name: c.data, "SHA256SUMS": []byte(c.sums)} {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		command := exec.CommandContext(t.Context(), "sh", "-ec", check)
		command.Dir, command.Env = dir, append(os.Environ(), "LC_ALL=C")
		said, err := output.Of(command)
		if refused := err != nil; refused != (c.want != "") || !strings.Contains(said.Stdout+said.Stderr, c.want) {
			t.Errorf("%s: %v, want %q: %s", what, err, c.want, said)
		}
	}
	half := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(half, whole[:len(whole)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	if said, err := output.Of(exec.CommandContext(t.Context(), "tar", "-xzf", half, "-C", t.TempDir())); err == nil || !strings.Contains(said.Stderr, "unexpected end of file") {
		t.Errorf("half an archive is unpacked: %v: %s", err, said)
	}
}
