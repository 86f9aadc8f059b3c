package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/output"
)

// machine is a Debian in a directory, without systemd. A fake systemctl records what the package's scripts request.
type machine struct {
	*testing.T
	root     string // what was written is below it; with a lower directory, the rest is there
	lower    string // "": root has all
	artefact string // the release's directory
}

// sh runs a script in the machine and returns its output, including standard error.
func (m *machine) sh(script string) (string, error) {
	m.Helper()
	got, err := output.Of(m.inside("exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive sh -ec \"$0\"", "exec 2>&1\n"+script))
	return got.Stdout, err
}

// inside is a command that runs a line of shell with arguments in the machine's root directory, with its file systems mounted.
func (m *machine) inside(line string, args ...string) *exec.Cmd {
	mounts := "cd " + m.root + " && mount -t proc proc proc && "
	if m.lower != "" { // one that stays mounted would show what is written to root only in part
		at := filepath.Join(filepath.Dir(m.root), "at")
		mounts = "mount -t overlay overlay -o lowerdir=" + m.lower + ",upperdir=" + m.root + ",workdir=" + filepath.Join(filepath.Dir(m.root), "work") + " " + at +
			" && cd " + at + " && mount -t proc proc proc && mount --rbind /dev dev && "
	}
	return exec.CommandContext(m.Context(), "unshare", append([]string{"--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "sh", "-ec", mounts + line}, args...)...)
}

// must is sh for a script that must succeed.
func (m *machine) must(script string) string {
	m.Helper()
	out, err := m.sh(script)
	if err != nil {
		m.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// refuses is sh for a script that must fail and say why.
func (m *machine) refuses(script, want string) {
	m.Helper()
	if out, err := m.sh(script); err == nil || !strings.Contains(out, want) {
		m.Errorf("%s: %v, want %q in\n%s", script, err, want, out)
	}
}

// put copies a file into the machine.
func (m *machine) put(from, to string) {
	m.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		m.Fatal(err)
	}
	m.write(to, string(data), 0o644)
}

// write writes a file of the machine, through the overlay if there is one: it knows what is removed in it.
func (m *machine) write(to, text string, mode os.FileMode) {
	m.Helper()
	write := m.inside(`mkdir -p "$(dirname "$0")" && cat >"$0" && chmod "$1" "$0"`, to, fmt.Sprintf("%o", mode))
	write.Stdin = strings.NewReader(text)
	if got, err := output.Of(write); err != nil {
		m.Fatalf("cannot write %s: %v\n%s", to, err, got.Stderr)
	}
}

// asked returns the systemctl requests since the last call.
func (m *machine) asked() string {
	m.Helper()
	name := filepath.Join(m.root, "tmp", "asked")
	text, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		m.Fatal(err)
	}
	if err := os.RemoveAll(name); err != nil {
		m.Fatal(err)
	}
	return string(text)
}

// unseen are directories whose files package managers and this test write.
var unseen = []string{"proc", "sys", "dev", "tmp", "var/lib/dpkg", "var/lib/rpm", "root", "var/log", "var/cache"}

// tree returns the machine's files with checksums, and its directories: of a machine with a lower directory only those that differ from it.
func (m *machine) tree() string {
	m.Helper()
	var out strings.Builder
	err := filepath.WalkDir(m.root, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(m.root, path)
		switch {
		case err != nil:
			return err
		case slices.Contains(unseen, name):
			return fs.SkipDir
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			fmt.Fprintf(&out, "%s  %s\n", sum(data), name)
			return err
		case m.lower != "":
			there, err := os.Lstat(filepath.Join(m.lower, name))
			if removed := d.Type()&fs.ModeCharDevice != 0; removed && err != nil || d.IsDir() && err == nil && there.IsDir() {
				return nil
			}
		}
		fmt.Fprintf(&out, "%s %s\n", d.Type(), name)
		return nil
	})
	if err != nil {
		m.Fatal(err)
	}
	return out.String()
}

const sources = `apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | awk -v r="$(. /etc/os-release && echo $VERSION_CODENAME)" '$2 == r && $3 == "main" {print $1; exit}'`

// newMachine creates the machine. With WINKUBE_INSTALL it is a fresh Debian, as hack/test-fresh.sh makes it, for the release that was made. Otherwise it is a
// copy of this machine that holds only changes, for packages with other programs.
func newMachine(t *testing.T) *machine {
	t.Helper()
	top, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{T: t, artefact: filepath.Join(top, "_output", "release")}
	if os.Getenv("WINKUBE_INSTALL") != "" {
		m.fresh(top)
	} else {
		m.copied()
		m.artefact = standIns(t)
	}
	m.write("etc/dpkg/dpkg.cfg.d/unsafe-io", "force-unsafe-io\n", 0o644)
	m.write("usr/bin/systemctl", `#!/bin/sh
for unit; do :; done
case "$1" in
show) cat /etc/systemd/system/$unit /usr/lib/systemd/system/$unit 2>/dev/null | sed -n 's/^ExecStart=\([^ ]*\)\(.*\)/ExecStart={ path=\1 ; argv[]=\1\2 ; ignore_errors=no }/p' | head -n 1 ;;
is-active) test -e /tmp/active/$unit ;;
*) echo "$@" >>/tmp/asked ;;
esac
`, 0o755)
	m.write("run/systemd/system/.keep", "", 0o644)
	return m
}

// fresh makes a minimal Debian.
func (m *machine) fresh(top string) {
	m.Helper()
	m.root = filepath.Join(m.TempDir(), "root")
	if _, err := os.Stat(filepath.Join(m.artefact, sumsName)); err != nil {
		m.Fatalf("%v: run make release first", err)
	}
	cache := filepath.Join(top, "_output", "fresh", "debs")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		m.Fatal(err)
	}
	m.host(filepath.Join(top, "hack", "ensure-packages.sh"), "release")
	mirror := strings.TrimSpace(m.host("sh", "-ec", sources))
	release := strings.TrimSpace(m.host("sh", "-ec", ". /etc/os-release && echo $VERSION_CODENAME"))
	m.host("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc", "debootstrap", "--variant=minbase", "--cache-dir="+cache, release, m.root, mirror)
}

// copied takes this machine for a lower directory.
func (m *machine) copied() {
	m.Helper()
	if os.Getuid() != 0 {
		m.Skip("only root may install packages in a copy of this machine")
	}
	for _, tool := range []string{"dpkg-deb", "rpm"} {
		if _, err := exec.LookPath(tool); err != nil {
			m.Skipf("%s is missing: hack/ensure-packages.sh rpm", tool)
		}
	}
	dir, err := os.MkdirTemp("/dev/shm", "winkube-machine-") // /tmp may be on a file system that overlays refuse
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			m.Error(err)
		}
	})
	m.root, m.lower = filepath.Join(dir, "root"), "/"
	for _, name := range []string{"root", "work", "at"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			m.Fatal(err)
		}
	}
	// policy-rc.d keeps a container's services stopped; the others are what a kubelet has left on this machine.
	m.must("rm -rf /usr/sbin/policy-rc.d /var/lib/kubelet /etc/kubernetes /etc/default/kubelet /etc/default/proxy /etc/systemd/system/kubelet.service* /etc/systemd/system/proxy.service*")
}

// host runs a program on this machine.
func (m *machine) host(program string, args ...string) string {
	m.Helper()
	got, err := output.Of(exec.CommandContext(m.Context(), program, args...))
	if err != nil {
		m.Fatalf("%s %v: %v\n%s%s", program, args, err, got.Stdout, got.Stderr)
	}
	return got.Stdout
}

// standIns makes deb and rpm packages for both processors in a directory, with scripts in place of the programs. They print this version.
func standIns(t *testing.T) string {
	t.Helper()
	src, err := readSource(t.Context(), filepath.Join("..", ".."), "")
	if err != nil {
		t.Fatal(err)
	}
	dir, checkout := t.TempDir(), checkoutFiles(t)
	pages, err := generated(src.Version, src.When)
	if err != nil {
		t.Fatal(err)
	}
	program := fmt.Appendf(nil, "#!/bin/sh\necho 'Kubernetes v1.36.3'\necho 'winkube %s'\necho 'commit 0123456789ab'\necho 'engine Docker'\n", src.Version)
	var made []file
	for _, kind := range []string{"deb", "rpm"} {
		for _, arch := range []string{"amd64", "arm64"} {
			files, err := packageFiles(kind, src, checkout, pages, []file{{"kubelet", 0o755, program}, {"proxy", 0o755, program}}, []byte("licences\n"))
			if err != nil {
				t.Fatal(err)
			}
			one, err := src.makePackage(t.Context(), kind, arch, t.TempDir(), nfpmTool(t), files, scriptsOf(kind, checkout))
			if err != nil {
				t.Fatal(err)
			}
			made = append(made, one)
		}
	}
	for _, one := range append(made, file{sumsName, 0o644, sums(made)}) {
		if err := os.WriteFile(filepath.Join(dir, one.name), one.data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// nfpmTool builds nfpm, as make release does, and returns its path.
func nfpmTool(t *testing.T) string {
	t.Helper()
	tool, err := (&source{Root: filepath.Join("..", "..")}).buildNFPM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tool
}
