package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/output"
)

// machine is a minimal Debian in a directory, without systemd. A fake systemctl records what the package's scripts request.
type machine struct {
	*testing.T
	root     string
	artefact string // the release's directory
}

// sh runs a script in the machine and returns its output, including standard error.
func (m *machine) sh(script string) (string, error) {
	m.Helper()
	command := exec.CommandContext(m.Context(), "unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc="+filepath.Join(m.root, "proc"),
		"chroot", m.root, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "sh", "-ec", "exec 2>&1\n"+script)
	got, err := output.Of(command)
	return got.Stdout, err
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

func (m *machine) write(to, text string, mode os.FileMode) {
	m.Helper()
	name := filepath.Join(m.root, to)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		m.Fatal(err)
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

// tree returns the machine's files with checksums, without those that the package manager and this test write.
func (m *machine) tree() string {
	m.Helper()
	return m.must(`cd / && find . -xdev \( -path ./proc -o -path ./sys -o -path ./tmp -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./root -o -path ./var/log -o -path ./var/cache \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
find . -xdev \( -path ./proc -o -path ./sys -o -path ./tmp -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./root -o -path ./var/log -o -path ./var/cache \) -prune -o ! -type f -print | sort`)
}

const sources = `apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | awk -v r="$(. /etc/os-release && echo $VERSION_CODENAME)" '$2 == r && $3 == "main" {print $1; exit}'`

// fresh creates the machine, as hack/test-fresh.sh does.
func fresh(t *testing.T) *machine {
	t.Helper()
	if os.Getenv("WINKUBE_INSTALL") == "" {
		t.Skip("set WINKUBE_INSTALL=1, as root, after make release, to install its packages in a fresh Debian")
	}
	top, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{T: t, root: filepath.Join(t.TempDir(), "root"), artefact: filepath.Join(top, "_output", "release")}
	if _, err := os.Stat(filepath.Join(m.artefact, sumsName)); err != nil {
		t.Fatalf("%v: run make release first", err)
	}
	cache := filepath.Join(top, "_output", "fresh", "debs")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	m.host(filepath.Join(top, "hack", "ensure-packages.sh"), "release")
	mirror := strings.TrimSpace(m.host("sh", "-ec", sources))
	release := strings.TrimSpace(m.host("sh", "-ec", ". /etc/os-release && echo $VERSION_CODENAME"))
	m.host("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc", "debootstrap", "--variant=minbase", "--cache-dir="+cache, release, m.root, mirror)
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

// host runs a program on this machine.
func (m *machine) host(program string, args ...string) string {
	m.Helper()
	got, err := output.Of(exec.CommandContext(m.Context(), program, args...))
	if err != nil {
		m.Fatalf("%s %v: %v\n%s%s", program, args, err, got.Stdout, got.Stderr)
	}
	return got.Stdout
}

// joined sets the machine up as `kubelet node join` leaves it.
func (m *machine) joined() {
	m.Helper()
	for _, name := range []string{"kubelet", "proxy"} {
		m.write("etc/systemd/system/"+name+".service", "# Written by `kubelet node join`; `kubelet node leave` removes it.\n[Service]\nExecStart=/usr/bin/"+name+" $X\n", 0o644)
		m.write("etc/default/"+name, "# Written by `kubelet node join`; `kubelet node leave` removes it.\nX=\n", 0o644)
	}
	for _, name := range []string{"kubelet.conf", "proxy.conf", "proxy.token", "pki/ca.crt"} {
		m.write("etc/kubernetes/"+name, name, 0o600)
	}
	m.write("var/lib/kubelet/pods/x/volume", "data", 0o600)
	m.must("mkdir -p /etc/systemd/system/multi-user.target.wants; ln -sf /usr/lib/systemd/system/kubelet.service /etc/systemd/system/multi-user.target.wants/kubelet.service")
}

// TestInstallDeb installs, upgrades, breaks, removes and purges the Debian package of _output/release.
func TestInstallDeb(t *testing.T) {
	m := fresh(t)
	version, err := os.ReadFile("../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	arch := runtime.GOARCH
	name := packageName("deb", arch, strings.TrimSpace(string(version)))
	m.put(filepath.Join(m.artefact, name), "root/new.deb")
	m.must(`cd /root && dpkg-deb -R new.deb old && sed -i 's/^Version: .*/Version: 0.0.1-1/' old/DEBIAN/control && echo old >old/usr/share/winkube/package && dpkg-deb --root-owner-group -Zgzip -z1 -b old old.deb
mkdir -p theirs/DEBIAN && printf 'Package: kubelet\nVersion: 1.36.3-1.1\nArchitecture: all\nMaintainer: them\nDescription: theirs\n' >theirs/DEBIAN/control && dpkg-deb -b theirs theirs.deb
head -c 5000000 new.deb >half.deb; mkdir -p etc; rm -rf old theirs`)
	before := m.tree()
	m.asked()

	m.refuses("dpkg -i /root/half.deb", "unexpected end of file")
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[arch]
	m.put(filepath.Join(m.artefact, packageName("deb", other, strings.TrimSpace(string(version)))), "root/other.deb")
	m.refuses("dpkg -i /root/other.deb", "package architecture ("+other+") does not match system")
	m.must("dpkg -i /root/theirs.deb")
	m.refuses("dpkg -i /root/new.deb", "winkube conflicts with kubelet")
	if out := m.must("apt-get --simulate --no-install-recommends install /root/new.deb"); !strings.Contains(out, "REMOVED:\n  kubelet\n") {
		m.Errorf("apt in the place of theirs says\n%s", out)
	}
	m.must("dpkg -P kubelet")
	m.must("dpkg -P winkube || true")
	if got := m.tree(); got != before {
		t.Fatalf("refused packages leave\n%s", difference(before, got))
	}
	m.asked()

	m.must("dpkg -i /root/new.deb")
	if out := m.must("dpkg -V winkube; kubelet --version; proxy --version=full"); !strings.HasPrefix(out, "Kubernetes v1.") || !strings.Contains(out, "winkube "+strings.TrimSpace(string(version))+"\ncommit ") || !strings.Contains(out, "engine Docker") {
		t.Errorf("the programs print\n%s", out)
	}
	if got := m.asked(); got != "--system daemon-reload\n" {
		t.Errorf("an installation asks systemctl for\n%s", got)
	}
	if out := m.must("ls /etc/systemd/system /etc/default /etc/kubernetes /var/lib/kubelet 2>&1 || true"); strings.Contains(out, "kubelet.service") || strings.Contains(out, "\nproxy") || strings.Contains(out, "kubelet\n") {
		t.Errorf("an installation makes\n%s", out)
	}

	m.joined()
	for _, file := range []string{"old.deb", "new.deb"} { // back to the previous version, and up again
		m.must("dpkg -i /root/" + file)
		if got := m.asked(); got != "--system daemon-reload\ntry-restart kubelet.service\ntry-restart proxy.service\ntry-restart kubelet-cri.service\n" {
			t.Errorf("the change to %s asks systemctl for\n%s", file, got)
		}
	}
	m.must("dpkg --unpack /root/old.deb") // as if power fails before the scripts run
	m.must("kubelet --version && dpkg --configure -a && dpkg -i /root/new.deb && grep -q X= /etc/default/kubelet")
	m.asked()

	if out := m.must("dpkg -r winkube"); !strings.Contains(out, "this host is still a node, and its containers keep running; to take it out of the cluster, run `kubelet node leave` before") {
		t.Errorf("a removal from a node says\n%s", out)
	}
	if got := m.asked(); !strings.HasPrefix(got, "stop kubelet.service proxy.service kubelet-cri.service\n") {
		t.Errorf("a removal asks systemctl for\n%s", got)
	}
	m.must("test ! -e /usr/bin/kubelet && test -e /etc/kubernetes/kubelet.conf && test -e /var/lib/kubelet/pods/x/volume")
	m.must("dpkg -P winkube")
	if got := m.tree(); got != before {
		t.Errorf("a purge leaves or takes\n%s", difference(before, got))
	}

	m.must("dpkg -i /root/new.deb")
	m.joined()
	m.write("root/kubelet", "#!/bin/sh\n", 0o755)
	if out := m.must("dpkg -r winkube && cp /root/kubelet /usr/bin/kubelet && dpkg -P winkube"); !strings.Contains(out, "/var/lib/kubelet stay: this host has another kubelet") {
		t.Errorf("a purge beside another kubelet says\n%s", out)
	}
	m.must("test -e /var/lib/kubelet/pods/x/volume && test -e /etc/kubernetes/kubelet.conf && test -e /etc/systemd/system/kubelet.service")
}

// TestInstallRPM installs the rpm of _output/release over an older one, and removes it. rpm runs outside the machine and installs into it.
func TestInstallRPM(t *testing.T) {
	m := fresh(t)
	top := filepath.Join("..", "..")
	src, err := readSource(t.Context(), top, "")
	if err != nil {
		t.Fatal(err)
	}
	name := packageName("rpm", runtime.GOARCH, src.Version)
	older := *src
	older.Version = "0.0.1"
	checkout := checkoutFiles(t)
	files, err := packageFiles("rpm", &older, checkout, nil, []file{{"kubelet", 0o755, []byte("#!/bin/sh\n")}, {"proxy", 0o755, []byte("#!/bin/sh\n")}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tool, err := filepath.Abs(filepath.Join(top, "_output", "tools", "nfpm"))
	if err != nil {
		t.Fatal(err)
	}
	old, err := older.makePackage(t.Context(), "rpm", runtime.GOARCH, t.TempDir(), tool, files, scriptsOf("rpm", checkout))
	if err != nil {
		t.Fatal(err)
	}
	oldFile := filepath.Join(t.TempDir(), old.name)
	if err := os.WriteFile(oldFile, old.data, 0o644); err != nil {
		t.Fatal(err)
	}
	rpm := func(args ...string) { m.host("rpm", append([]string{"--root", m.root}, args...)...) }
	m.must("mkdir -p /var/lib/rpm /usr/share/licenses /usr/share/zsh/site-functions /usr/share/fish/vendor_completions.d /usr/share/bash-completion/completions /usr/lib/systemd/system")
	rpm("--initdb")
	before := m.tree()
	rpm("-i", "--nodeps", oldFile)
	if got := m.asked(); got != "daemon-reload\n" {
		t.Errorf("an installation asks systemctl for\n%s", got)
	}
	rpm("-U", "--nodeps", filepath.Join(m.artefact, name))
	if got := m.asked(); got != "daemon-reload\ntry-restart kubelet.service\ntry-restart proxy.service\ntry-restart kubelet-cri.service\ndaemon-reload\n" {
		t.Errorf("an upgrade asks systemctl for\n%s", got)
	}
	rpm("-V", "--nodeps", "winkube")
	if out := m.must("proxy --version=full"); !strings.Contains(out, "winkube "+src.Version+"\n") {
		t.Errorf("the proxy prints\n%s", out)
	}
	rpm("-U", "--nodeps", "--oldpackage", oldFile)
	m.asked()
	rpm("-e", "winkube")
	if got := m.asked(); got != "stop kubelet.service proxy.service kubelet-cri.service\ndaemon-reload\n" {
		t.Errorf("a removal asks systemctl for\n%s", got)
	}
	if got := m.tree(); got != before {
		t.Errorf("a removal leaves or takes\n%s", difference(before, got))
	}
}

// difference returns the lines that only one of two texts has.
func difference(before, after string) string {
	var out strings.Builder
	for _, side := range []struct{ mark, in, notIn string }{{"-", before, after}, {"+", after, before}} {
		have := map[string]bool{}
		for line := range strings.Lines(side.notIn) {
			have[line] = true
		}
		for line := range strings.Lines(side.in) {
			if !have[line] {
				fmt.Fprint(&out, side.mark, line)
			}
		}
	}
	return out.String()
}

// TestLint checks the artefacts with lintian, rpmlint, rpm, man and sha256sum.
func TestLint(t *testing.T) {
	if os.Getenv("WINKUBE_INSTALL") == "" {
		t.Skip("set WINKUBE_INSTALL=1, as root, after make release")
	}
	m := &machine{T: t, artefact: filepath.Join("..", "..", "_output", "release")}
	m.host("../ensure-packages.sh", "release")
	m.host("sh", "-ec", "cd "+m.artefact+" && sha256sum --check --strict --quiet SHA256SUMS")
	m.host("sh", "-ec", "lintian --allow-root --fail-on error "+m.artefact+"/*.deb")
	lint, _ := output.Of(exec.CommandContext(t.Context(), "sh", "-c", "rpmlint "+m.artefact+"/*.rpm")) // its exit status also counts the errors excluded below
	for line := range strings.Lines(lint.Stdout) {
		switch {
		case !strings.Contains(line, ": E: "):
		case strings.Contains(line, "no-signature"), strings.Contains(line, "no-changelogname-tag"): // there is no key; the change log is a file of the package
		case strings.Contains(line, "no-binary"), strings.Contains(line, "statically-linked-binary"): // properties of Go binaries
		default:
			t.Errorf("rpmlint: %s", line)
		}
	}
	if !strings.Contains(lint.Stdout, "packages and 0 specfiles checked") {
		t.Errorf("rpmlint did not run: %s%s", lint.Stdout, lint.Stderr)
	}
}
